"""Finds the types that a C++ file defines at namespace scope.

Reads text, not a compiler's tree; the house style keeps that simple.
"""

import re

TYPE = re.compile(r"\b(?:enum class|enum struct|enum|class|struct|union)\b(.*)", re.DOTALL)
CONCEPT = re.compile(r"\bconcept\s+(\w+)\s*=")
STRONG_ID = re.compile(r"\busing\s+(\w+)\s*=\s*(?:\w+::)*StrongId<")
NAMESPACE = re.compile(r'(?:^|\s)(?:namespace\b[^()=]*|extern\s*)$')
BLANKED = re.compile(r'//[^\n]*|/\*.*?\*/|R"\((?:.*?)\)"|"(?:\\.|[^"\\\n])*"'
                     r"|(?<![0-9a-fA-F])'(?:\\.|[^'\\\n])'", re.DOTALL)
DIRECTIVE = re.compile(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", re.MULTILINE)


def without_template(head):
    """The head without a leading `template <…>`, which may name types of its own."""
    while match := re.match(r"\s*template\s*<", head):
        depth, at = 1, match.end()
        while at < len(head) and depth:
            if head[at] == "<":
                depth += 1
            elif head[at] == ">" and head[at - 1] != "-":
                depth -= 1
            at += 1
        head = head[at:]
    return head


def type_name(head):
    """The name of the type whose body follows `head`; None for other bodies, specialisations and members."""
    match = TYPE.search(without_template(head))
    if not match:
        return None
    rest = re.sub(r"\[\[.*?\]\]|\b(?:alignas|[A-Z][A-Z0-9_]+)\s*\([^()]*\)", " ", match[1])
    rest = re.sub(r"^(?:\s*[A-Z][A-Z0-9_]+\b)*(?=\s+\w)", " ", rest)
    name = re.match(r"\s*(\w+)\s*(?:final\s*)?(?::[^:]|$)", rest)
    return name[1] if name else None


def types_of(text):
    """Yields (line, name) of every class, struct, union, enum, concept and strong id at namespace scope."""
    text = BLANKED.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)
    text = DIRECTIVE.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)
    scopes, start = [], 0  # scopes: whether each open brace is that of a namespace
    for match in re.finditer(r"[{};]", text):
        head = text[start : match.start()]
        line = text.count("\n", 0, match.start()) + 1
        outside = all(scopes)
        if match[0] == "{":
            is_namespace = bool(NAMESPACE.search(head))
            if outside and not is_namespace:
                if concept := CONCEPT.search(head):
                    yield line, concept[1]
                elif name := type_name(head):
                    yield line, name
            scopes.append(is_namespace)
        elif match[0] == "}" and scopes:
            scopes.pop()
        elif match[0] == ";" and outside and (found := CONCEPT.search(head) or STRONG_ID.search(head)):
            yield line, found[1]
        start = match.end()
