(* The noise stream of docs/noise-stream.md, to be computed: Philox's words, and directions made of them. *)

From Coq Require Import ZArith List Lia.
From Flocq Require Import Core IEEE754.BinarySingleNaN IEEE754.Binary IEEE754.Bits.
Import ListNotations.
Open Scope Z_scope.

(* --- words ------------------------------------------------------------------------------------------------------ *)

Definition word (n : Z) : Z := n mod 2 ^ 32.
Definition hi (n : Z) : Z := Z.shiftr n 32.

(* A key of two words, and a counter of four. *)
Definition key : Type := Z * Z.
Definition block : Type := Z * Z * Z * Z.

Definition M0 := 0xD2511F53.
Definition M1 := 0xCD9E8D57.
Definition W0 := 0x9E3779B9.
Definition W1 := 0xBB67AE85.

Definition philox_round (k : key) (c : block) : block :=
  let '(k0, k1) := k in
  let '(c0, c1, c2, c3) := c in
  (Z.lxor (Z.lxor (hi (M1 * c2)) c1) k0, word (M1 * c2), Z.lxor (Z.lxor (hi (M0 * c0)) c3) k1, word (M0 * c0)).

Fixpoint rounds (n : nat) (k : key) (c : block) : block :=
  match n with
  | O => c
  | S n => rounds n (word (fst k + W0), word (snd k + W1)) (philox_round k c)
  end.

Definition philox := rounds 10.

Definition key_of (seed : Z) : key := (word seed, hi seed).

Definition block_of (seed tag c2 number : Z) : block := philox (key_of seed) (word number, hi number, c2, tag).

Definition nth_word (i : Z) (b : block) : Z :=
  let '(w0, w1, w2, w3) := b in if i =? 0 then w0 else if i =? 1 then w1 else if i =? 2 then w2 else w3.

(* Where element j is: its block, and its word within. *)
Definition block_number (j : Z) : Z := 32 * Z.shiftr j 7 + Z.land j 31.
Definition place (j : Z) : Z := Z.land (Z.shiftr j 5) 3.

Definition element_word (seed tag c2 j : Z) : Z := nth_word (place j) (block_of seed tag c2 (block_number j)).

(* --- float32 ---------------------------------------------------------------------------------------------------- *)

Notation float32 := (binary_float 24 128).
Definition add (x y : float32) : float32 := b32_plus mode_NE x y.
Definition mul (x y : float32) : float32 := b32_mult mode_NE x y.
Definition root (x : float32) : float32 := b32_sqrt mode_NE x.
Definition neg : float32 -> float32 := b32_opp.
(* m 2^e, rounded. *)
Definition scaled (m e : Z) : float32 := binary_normalize 24 128 eq_refl eq_refl mode_NE m e false.
Definition float (n : Z) : float32 := scaled n 0.
Notation bits := bits_of_b32.
Notation from_bits := b32_of_bits.

(* The float32 nearest to n / 10^digits: its 24 bits are those of an integer quotient, rounded. *)
Definition decimal (n : Z) (digits : Z) : float32 :=
  let d := 10 ^ digits in
  let about := 23 - (Z.log2 (Z.abs n) - Z.log2 d) in
  let quotient k := (2 * Z.abs n * 2 ^ k + d) / (2 * d) in
  let k := if quotient about <? 2 ^ 23 then about + 1 else if quotient about <? 2 ^ 24 then about else about - 1 in
  scaled (Z.sgn n * quotient k) (- k).

(* Horner's coefficients, that of the highest power first. *)
Definition LOG_Q : list float32 :=
  map (fun n => decimal n 9) [-244219363; 375654489; -409095138; 497935861; -666320562; 1000028010; -2000001670].
Definition SIN_T : list float32 :=
  [decimal (-43710256) 10; decimal 795006678 10; decimal (-645925999) 9; decimal 157079518 8].
Definition COS_T : list float32 :=
  [decimal 870188756 12; decimal (-208331067) 10; decimal 25366348 8; decimal (-123370039) 8; decimal 1 0].
Definition LOG_2_TWICE : float32 := decimal 138629436 8.
Definition SQRT_HALF := 0x3f3504f3.
Definition one : float32 := float 1.
Definition zero : float32 := B754_zero 24 128 false.

Definition horner (cs : list float32) (x : float32) : float32 :=
  match cs with
  | [] => zero
  | c :: rest => fold_left (fun total c => add (mul total x) c) rest c
  end.

(* --- gaussian --------------------------------------------------------------------------------------------------- *)

Definition signed (w : Z) : Z := if w <? 2 ^ 31 then w else w - 2 ^ 32.

(* The radius, of a word. *)
Definition exponent (b : Z) : Z := Z.shiftr (b - SQRT_HALF) 23.
Definition radius (w : Z) : float32 :=
  let b := bits (float (Z.lor (Z.shiftr w 8) 1)) in
  let e := exponent b in
  let x := add (from_bits (b - Z.shiftl e 23)) (neg one) in
  root (add (mul (float (24 - e)) LOG_2_TWICE) (mul x (horner LOG_Q x))).

(* Half of a turn, in 2^24 steps, and what the angle's sine and cosine are. *)
Definition turn (w : Z) : float32 := scaled (Z.lor (Z.shiftr (signed w) 8) 1) (-23).
Definition sine (w : Z) : float32 := let t := turn w in mul t (horner SIN_T (mul t t)).
Definition cosine (w : Z) : float32 :=
  let t := turn w in
  let c := horner COS_T (mul t t) in
  if Z.odd w then neg c else c.

(* Of the words 0 and 1 of a block come z of both, and of 2 and 3. *)
Definition normal (i : Z) (b : block) : float32 :=
  let '(w0, w1, w2, w3) := b in
  let (w, v) := if i <? 2 then (w0, w1) else (w2, w3) in
  mul (radius w) (if Z.even i then cosine v else sine v).

Definition gaussian (seed p j : Z) : float32 := normal (place j) (block_of seed 0 p (block_number j)).

(* --- the other distributions ------------------------------------------------------------------------------------ *)

Definition rademacher (seed p j : Z) : float32 :=
  if Z.testbit (element_word seed 1 (Z.shiftr p 5) j) (31 - Z.land p 31) then neg one else one.

(* float64, for the length of a sphere's direction *)
Notation float64 := (binary_float 53 1024).
Definition convert p e p' e' prec' less' (x : binary_float p e) : binary_float p' e' :=
  match x with
  | B754_finite _ _ s m e _ => binary_normalize p' e' prec' less' mode_NE (cond_Zopp s (Zpos m)) e false
  | _ => B754_zero p' e' false
  end.
Definition wide : float32 -> float64 := convert 24 128 53 1024 eq_refl eq_refl.
Definition narrow : float64 -> float32 := convert 53 1024 24 128 eq_refl eq_refl.
Definition add64 := b64_plus mode_NE.
Definition mul64 := b64_mult mode_NE.
Definition zero64 : float64 := B754_zero 53 1024 false.

(* A tile's sum by halves. *)
Fixpoint by_halves (levels : nat) (xs : list float64) : float64 :=
  match levels with
  | O => hd zero64 xs
  | S rest => let n := Nat.pow 2 rest in
      by_halves rest (map (fun pair => add64 (fst pair) (snd pair)) (combine (firstn n xs) (skipn n xs)))
  end.

Definition range (first many : Z) : list Z := map (fun n => first + Z.of_nat n) (seq 0 (Z.to_nat many)).

Definition square_length (g : Z -> float32) (d : Z) : float64 :=
  let square j := if j <? d then let x := wide (g j) in mul64 x x else zero64 in
  let tile t := by_halves 7 (map square (range (128 * t) 128)) in
  fold_left (fun total t => add64 total (tile t)) (range 0 ((d + 127) / 128)) zero64.

Definition direction (kind seed p d : Z) : list float32 :=
  if kind =? 0 then map (gaussian seed p) (range 0 d)
  else if kind =? 1 then map (rademacher seed p) (range 0 d)
  else
    let g := map (gaussian seed p) (range 0 d) in
    let get j := nth (Z.to_nat j) g zero in
    let whole := binary_normalize 53 1024 eq_refl eq_refl mode_NE d 0 false in
    let scale := narrow (b64_sqrt mode_NE (b64_div mode_NE whole (square_length get d))) in
    map (fun z => mul z scale) g.

(* --- 16 bits ---------------------------------------------------------------------------------------------------- *)

(* To the nearest number of a format of so many bits, ties to even; its bits as a float32's. *)
Definition nearest (precision emax : Z) (prec : Prec_gt_0 precision) (less : Prec_lt_emax precision emax) (b : Z) : Z :=
  match from_bits b with
  | B754_finite _ _ s m e _ =>
      match binary_normalize precision emax prec less mode_NE (cond_Zopp s (Zpos m)) e false with
      | B754_finite _ _ s m e _ => bits (scaled (cond_Zopp s (Zpos m)) e)
      | B754_zero _ _ _ => bits (B754_zero 24 128 s)
      | _ => bits (B754_infinity 24 128 s)
      end
  | _ => b
  end.

(* By chance: the word's top n bits are added to the n bits below the format's last one, which are cut. *)
Definition by_chance (n w b : Z) : Z := Z.shiftl (Z.shiftr (b + Z.shiftr w (32 - n)) n) n.
(* Float16 has numbers 2^-24 apart below 2^-14, and none beyond 65504. *)
Definition by_chance_float16 (w b : Z) : Z :=
  let size := Z.land b 0x7fffffff in
  let sign := b - size in
  let cut :=
    if size <? 0x38800000 then
      match from_bits size with
      | B754_finite _ _ _ m e _ => bits (scaled (Z.shiftr (Z.shiftl (Zpos m) (e + 37) + Z.shiftr w 19) 13) (-24))
      | _ => size
      end
    else by_chance 13 w size in
  sign + if 0x477fe000 <? cut then 0x7f800000 else cut.
