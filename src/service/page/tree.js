export function showTree() {}
export function treeIsShown() {}
