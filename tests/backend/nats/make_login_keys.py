#!/usr/bin/env python3
"""Writes login_keys.h: keys and JWTs with which tests log in at a nats-server of their own.

Seeds are hashes of their names, so the file comes out the same each time. Nothing else may use them. Needs
openssl.
"""
import base64
import hashlib
import json
import pathlib
import subprocess
import tempfile

PREFIX = {"O": 14 << 3, "A": 0, "U": 20 << 3}
SEED = 18 << 3


def crc16(data):
    crc = 0
    for byte in data:
        crc ^= byte << 8
        for _ in range(8):
            crc = (crc << 1 ^ 0x1021 if crc & 0x8000 else crc << 1) & 0xFFFF
    return crc


def encode(data):
    return base64.b32encode(data + crc16(data).to_bytes(2, "little")).decode().rstrip("=")


class Key:
    def __init__(self, kind, name):
        self.raw = hashlib.sha256(("ashlar test key " + name).encode()).digest()
        self.der = bytes.fromhex("302e020100300506032b657004220420") + self.raw
        public = self.openssl("pkey", "-inform", "DER", "-in", "KEY", "-pubout", "-outform", "DER")[-32:]
        self.public = encode(bytes([PREFIX[kind]]) + public)
        self.seed = encode(bytes([SEED | PREFIX[kind] >> 5, (PREFIX[kind] & 31) << 3]) + self.raw)

    def openssl(self, *command, data=b""):
        with tempfile.TemporaryDirectory() as folder:
            paths = {"KEY": folder + "/key", "DATA": folder + "/data"}
            pathlib.Path(paths["KEY"]).write_bytes(self.der)
            pathlib.Path(paths["DATA"]).write_bytes(data)
            return subprocess.run(["openssl", *(paths.get(word, word) for word in command)], check=True,
                                  capture_output=True).stdout

    def token(self, subject, name, claims):
        def text(value):
            return base64.urlsafe_b64encode(value).decode().rstrip("=")

        body = {"jti": "", "iat": 1700000000, "iss": self.public, "name": name, "sub": subject,
                "nats": claims | {"version": 2}}
        digest = hashlib.sha256(json.dumps(body).encode()).digest()
        body["jti"] = base64.b32encode(digest).decode().rstrip("=")
        head = json.dumps({"typ": "JWT", "alg": "ed25519-nkey"}, separators=(",", ":"))
        signed = text(head.encode()) + "." + text(json.dumps(body, separators=(",", ":")).encode())
        signature = self.openssl("pkeyutl", "-sign", "-rawin", "-keyform", "DER", "-inkey", "KEY", "-in",
                                 "DATA",
                                 data=signed.encode())
        return signed + "." + text(signature)


def main():
    operator, account = Key("O", "operator"), Key("A", "account")
    user, other = Key("U", "user"), Key("U", "other user")
    unlimited = {"subs": -1, "data": -1, "payload": -1}
    user_claims = unlimited | {"pub": {}, "sub": {}, "type": "user"}
    values = {
        "kUser": user.public,
        "kUserSeed": user.seed,
        "kOtherUser": other.public,
        "kOtherUserSeed": other.seed,
        "kAccount": account.public,
        "kOperatorJwt": operator.token(operator.public, "test operator", {"type": "operator"}),
        "kAccountJwt": operator.token(account.public, "test account", {
            "limits": unlimited | {"imports": -1, "exports": -1, "wildcards": True, "conn": -1, "leaf": -1},
            "type": "account"}),
        "kUserJwt": account.token(user.public, "test user", user_claims),
        # Of nobody that the operator knows.
        "kStrangeJwt": other.token(user.public, "stranger", user_claims),
    }
    lines = ["// Written by make_login_keys.py: keys of tests alone, known to everybody.", "#pragma once", "",
             "namespace ashlar::backend::nats::login_keys {", "", "// clang-format off"]
    for name, value in values.items():
        lines.append(f"inline constexpr char {name}[] =")
        pieces = [value[at:at + 100] for at in range(0, len(value), 100)]
        lines += [f'    "{piece}"' for piece in pieces[:-1]] + [f'    "{pieces[-1]}";']
    lines += ["// clang-format on", "", "}  // namespace ashlar::backend::nats::login_keys", ""]
    pathlib.Path(__file__).with_name("login_keys.h").write_text("\n".join(lines))


main()
