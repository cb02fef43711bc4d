(* The rebuild law, over any arithmetic.

   Nothing is assumed of numbers: [add] and [mul] may round, saturate or overflow as they like, and [noise] may be any
   stream. What makes replicas equal is that all of them do the same operations in the same order. *)

From Coq Require Import List Arith Lia.
Import ListNotations.

Section Any_arithmetic.

Variables (number seed : Type) (add mul : number -> number -> number).
Variable noise : seed -> nat -> nat -> number. (* z(seed, p)_j: of a seed, a direction and an element *)
Variables (beta decay minus_eta : number).

(* An element of a replica: x_j and its momentum m_j. *)
Definition element : Type := number * number.
Definition replica := list element.

Definition step : Type := seed * list number. (* a local step: its seed, and its coefficients c_0 .. c_(P-1) *)
Definition record := list step. (* the K steps of a round *)

(* m <- m + c_p z_p for p = 0, 1, ... in turn. *)
Fixpoint estimate (s : seed) (j p : nat) (cs : list number) (m : number) : number :=
  match cs with
  | [] => m
  | c :: rest => estimate s j (S p) rest (add m (mul c (noise s p j)))
  end.

(* m <- beta m, m <- m + decay x, the estimate, x <- x - eta m; each product and sum is an operation of its own. *)
Definition step_element (t : step) (j : nat) (e : element) : element :=
  let (x, m) := e in
  let m := estimate (fst t) j 0 (snd t) (add (mul beta m) (mul decay x)) in
  (add x (mul minus_eta m), m).

(* The elements from number j on. *)
Fixpoint step_from (j : nat) (t : step) (v : replica) : replica :=
  match v with
  | [] => []
  | e :: rest => step_element t j e :: step_from (S j) t rest
  end.

Definition apply_from (j : nat) (v : replica) (r : record) : replica :=
  fold_left (fun v t => step_from j t v) r v.
Definition apply := apply_from 0.
Definition rebuild (v : replica) (rs : list record) : replica := fold_left apply rs v.

(* --- every lag, and every cutting ------------------------------------------------------------------------------- *)

(* A client that has the model after n records and gets the others has the server's model. *)
Theorem rebuild_after_any_lag : forall x0 log n,
  rebuild (rebuild x0 (firstn n log)) (skipn n log) = rebuild x0 log.
Proof. intros. unfold rebuild. rewrite <- fold_left_app. now rewrite firstn_skipn. Qed.

(* However the records are cut into messages. *)
Theorem rebuild_by_any_cutting : forall messages x0,
  fold_left rebuild messages x0 = rebuild x0 (concat messages).
Proof.
  induction messages as [| m rest IH]; intros; simpl; [reflexivity |].
  rewrite IH. unfold rebuild. now rewrite fold_left_app.
Qed.

(* And all elements, or each piece of them alone. *)
Lemma step_of_pieces : forall t a b j,
  step_from j t (a ++ b) = step_from j t a ++ step_from (j + length a) t b.
Proof.
  induction a as [| e a IH]; intros; simpl.
  - now rewrite Nat.add_0_r.
  - rewrite IH. now rewrite Nat.add_succ_comm.
Qed.

Lemma step_keeps_length : forall t v j, length (step_from j t v) = length v.
Proof. induction v; intros; simpl; auto. Qed.

Lemma apply_keeps_length : forall r v j, length (apply_from j v r) = length v.
Proof.
  induction r as [| t r IH]; intros; [reflexivity |].
  unfold apply_from in *. simpl. now rewrite IH, step_keeps_length.
Qed.

Lemma apply_to_pieces : forall r a b j,
  apply_from j (a ++ b) r = apply_from j a r ++ apply_from (j + length a) b r.
Proof.
  induction r as [| t r IH]; intros; [reflexivity |].
  unfold apply_from in *. simpl. now rewrite step_of_pieces, IH, step_keeps_length.
Qed.

Theorem rebuild_piece_by_piece : forall log a b,
  rebuild (a ++ b) log = fold_left (apply_from 0) log a ++ fold_left (apply_from (length a)) log b.
Proof.
  induction log as [| r log IH]; intros; [reflexivity |].
  unfold rebuild in *. simpl. unfold apply at 2. rewrite apply_to_pieces, IH. simpl.
  now rewrite apply_keeps_length.
Qed.

(* --- revert ----------------------------------------------------------------------------------------------------- *)

(* What a client holds: its replica and, while it takes local steps, a copy of it. *)
Record memory := { now : replica; kept : replica }.

Definition keep (c : memory) := {| now := now c; kept := now c |}.
Definition take_step (t : step) (c : memory) := {| now := step_from 0 t (now c); kept := kept c |}.
Definition put_back (c : memory) := {| now := kept c; kept := kept c |}.

(* A round: it keeps a copy, takes local steps with its own scalars, goes back, and applies the record of the round. *)
Definition round_of_a_client (c : memory) (own : list step) (r : record) : memory :=
  let c := put_back (fold_left (fun c t => take_step t c) own (keep c)) in
  {| now := apply (now c) r; kept := kept c |}.

Theorem reverting_leaves_no_trace : forall rounds c,
  now (fold_left (fun c each => round_of_a_client c (fst each) (snd each)) rounds c)
  = rebuild (now c) (map snd rounds).
Proof.
  assert (H : forall own c, kept (fold_left (fun c t => take_step t c) own c) = kept c).
  { induction own as [| t own IH]; intros; [reflexivity |]. simpl. now rewrite IH. }
  induction rounds as [| [own r] rounds IH]; intros; [reflexivity |].
  simpl. rewrite IH. simpl. now rewrite H.
Qed.

(* --- a session -------------------------------------------------------------------------------------------------- *)

(* What may happen to a client: a record of the log comes; a whole model comes; or it begins anew. A message of several
   records is one after the other. What is lost does not happen, what is repeated happens twice, what is late later. *)
Inductive event :=
  | Record_of (round : nat)
  | Model (round : nat)
  | Restart.

Variables (log : list record) (x0 : replica).

Definition model (n : nat) := rebuild x0 (firstn n log). (* the server's, after n rounds *)

(* The client's state: its round, and its replica. Only the record of its own round is applied. *)
Definition receive (state : nat * replica) (e : event) : nat * replica :=
  let (n, v) := state in
  match e with
  | Record_of r =>
      match nth_error log r with Some own => if r =? n then (S n, apply v own) else state | None => state end
  | Model r => if r <=? length log then (r, model r) else state
  | Restart => (0, x0)
  end.

Definition client (events : list event) := fold_left receive events (0, x0).
Definition is_the_server (state : nat * replica) := fst state <= length log /\ snd state = model (fst state).

Lemma one_record_more : forall n own, nth_error log n = Some own -> n < length log /\ model (S n) = apply (model n) own.
Proof.
  intros n own H. split; [apply nth_error_Some; congruence |]. unfold model, rebuild.
  assert (F : firstn (S n) log = firstn n log ++ [own]).
  { clear x0. revert n H. induction log as [| r rest IH]; intros [| n] H; simpl in *; try congruence.
    f_equal. now apply IH. }
  now rewrite F, fold_left_app.
Qed.

Lemma receive_keeps : forall state e, is_the_server state -> is_the_server (receive state e).
Proof.
  intros [n v] e [Hn Hv]. simpl in *. subst v. destruct e as [r | r |]; simpl.
  - destruct (nth_error log r) as [own |] eqn:R; [| now split]. destruct (Nat.eqb_spec r n) as [-> |]; [| now split].
    destruct (one_record_more n own R) as [L M]. split; simpl; [exact L | now rewrite M].
  - destruct (Nat.leb_spec r (length log)); now split.
  - split; [simpl; lia | reflexivity].
Qed.

(* Whatever happens, a client at round n has applied the records 0 .. n-1, each once and in order: it has the server's
   model of that round. *)
Theorem every_client_is_the_server : forall events, is_the_server (client events).
Proof.
  intros events. unfold client. assert (H : is_the_server (0, x0)) by (split; [simpl; lia | reflexivity]).
  revert H. generalize (0, x0). induction events as [| e events IH]; intros state H; simpl; [exact H |].
  now apply IH, receive_keeps.
Qed.

(* And who gets all that it lacks has the last model. *)
Theorem whoever_gets_all_is_done : forall events first, first <= fst (client events) ->
  client (events ++ map Record_of (seq first (length log - first))) = (length log, rebuild x0 log).
Proof.
  intros events first H.
  assert (after : forall before e, client (before ++ [e]) = receive (client before) e)
    by (intros; unfold client; now rewrite fold_left_app).
  assert (R : forall many, first + many <= length log ->
    first + many <= fst (client (events ++ map Record_of (seq first many)))).
  { induction many as [| many IH]; intros L; [now rewrite Nat.add_0_r, app_nil_r |].
    rewrite seq_S, map_app, app_assoc. cbn [map]. rewrite after. specialize (IH ltac:(lia)).
    destruct (client (events ++ map Record_of (seq first many))) as [n v]. simpl in *.
    destruct (nth_error log (first + many)) eqn:E; [| apply nth_error_None in E; lia].
    destruct (Nat.eqb_spec (first + many) n); simpl; lia. }
  pose proof (every_client_is_the_server events) as [Hn _].
  specialize (R (length log - first) ltac:(lia)).
  pose proof (every_client_is_the_server (events ++ map Record_of (seq first (length log - first)))) as [Kn Kv].
  destruct (client (events ++ _)) as [n v]. simpl in *. assert (n = length log) by lia. subst. unfold model.
  now rewrite firstn_all.
Qed.

End Any_arithmetic.

Print Assumptions rebuild_after_any_lag.
Print Assumptions rebuild_by_any_cutting.
Print Assumptions rebuild_piece_by_piece.
Print Assumptions reverting_leaves_no_trace.
Print Assumptions every_client_is_the_server.
Print Assumptions whoever_gets_all_is_done.
