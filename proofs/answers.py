"""Write the known answers of ``decomfl noise --vectors``, from stdin, as statements for the prover."""

import json
import sys

KINDS = ("gaussian", "rademacher", "sphere")
ROUNDED = {
    ("bfloat16", False): "nearest 8 128 eq_refl eq_refl",
    ("float16", False): "nearest 11 16 eq_refl eq_refl",
    ("bfloat16", True): "by_chance 16",
    ("float16", True): "by_chance_float16",
}


def listed(words):
    """Hexadecimal words as a list of numbers."""
    return "[" + "; ".join(f"0x{word}" for word in words.split()) + "]"


def statements(vectors):
    """A name, and what is computed and what must come out, for each known answer."""
    for n, own in enumerate(vectors["philox"]):
        k, c = (", ".join(f"0x{word}" for word in own[name].split()) for name in ("key", "counter"))
        yield f"philox_{n}", f"(let '(a, b, c, d) := philox ({k}) ({c}) in [a; b; c; d])", listed(own["words"])
    for n, own in enumerate(vectors["words"]):
        computed = f"map (element_word 0x{own['key']} {own['tag']} {own['c2']}) (range {own['first']} 128)"
        yield f"words_{n}", computed, listed(own["words"])
    for n, own in enumerate(vectors["directions"]):
        kind = KINDS.index(own["distribution"])
        computed = f"map bits (direction {kind} 0x{own['key']} {own['p']} {own['d']})"
        yield f"direction_{n}", computed, listed(own["bits"])
    for n, own in enumerate(vectors["narrow"]):
        function = ROUNDED[own["format"], own["words"] is not None]
        before = listed(own["before"])
        pairs = f"(combine {listed(own['words'] or '')} {before})"
        of = f"(fun pair => {function} (fst pair) (snd pair)) {pairs}" if own["words"] else f"({function}) {before}"
        yield f"rounded_{n}", f"map {of}", listed(own["after"])


print("From Coq Require Import ZArith List.\nRequire Import Stream.\nImport ListNotations.\nOpen Scope Z_scope.")
for name, computed, answer in statements(json.load(sys.stdin)):
    print(f"\nExample {name} : {computed} = {answer}.\nProof. vm_compute. reflexivity. Qed.")
