// Package rendezvous turns N processes that know some addresses into one agreed, ranked roster, exactly once, and later
// into one outcome that all of them share.
//
// It hides how the others are found (the environment's list, names that are resolved again and again, gossip), what
// memberlist is, and the protocol of the commit. It refuses to count heads: gossip, which takes seconds to show everyone
// everyone and counts the dead for half a minute, finds and watches, but never decides. Rank 0 decides, over one kept and
// authenticated connection to every other rank, which the caller knows how to open (Config.Dial) and hands in where it
// arrives (Node.Accept).
//
// # The commit
//
// Rank 0 dials everybody whose address it learns and greets them; every step is acknowledged.
//
//	rank 0                                     every other rank
//	   hello(record)  ----------------------->
//	                  <-----------------------  register(record, phase)
//	   waiting(missing)  -------------------->  so that each rank can say who is awaited, and why
//	   ...until all ranks are registered, with all that they have to say...
//	   prepare(epoch, roster, hash)  -------->  checks the hash and its own entry
//	                  <-----------------------  ack(epoch, hash)
//	   ...until all have acknowledged: rank 0 acts on it; waiting(missing) again if somebody does not acknowledge...
//	   go(epoch)  --------------------------->  acts on it once
//	                  <-----------------------  started(epoch)
//	   ...the job runs; anybody may send stop(signal, reason)...
//	   done(outcome)  ----------------------->
//	                  <-----------------------  done-ack
//	   ...until all have acknowledged, are gone, or 15 s have passed...
//	   bye  --------------------------------->  leaves; rank 0 is the last
//
// The phases of a rank:
//
//	+-----------+   prepare, ack   +----------+      go       +---------+
//	| Gathering | ---------------> | Prepared | ------------> | Running |
//	+-----------+ <--------------- +----------+               +---------+
//	      |        rank lost,           |  |                     |   |
//	      |        no ack:              |  | rank 0 is gone, or  | rank 0
//	      |        epoch + 1            |  | started again       | is gone
//	      |                             |  v                     v   |
//	      |                             | +------------------------+ |
//	      | done                   done | | asks the others        | | done
//	      |                             | +------------------------+ |
//	      v                             v   | outcome    | nothing   v
//	+-----------------------------------------------+    |     (to Ended)
//	| Ended: knows the outcome, tells whoever asks  |    |
//	+-----------------------------------------------+    |
//	      | bye, or rank 0 is gone for 1 s               |
//	      v                                              v
//	 leaves with the outcome                      leaves with LostError
//
// A rank registers before it knows everything of itself, and registers again when it knows more. What its launcher says of its version is in
// the roster if it comes in time. The summary of its fabric, which is judged across all ranks, is in every roster: a register says that it
// is still to come, and rank 0 prepares nothing before it has come from everybody (Config.Fabric). What is prepared does not change.
// A rank that can have no part in a launch registers in the same way, and says why in its next message, before it could acknowledge
// anything: that ends the job (Config.Unfit).
//
// The first three ranks are told to go at once, so that a rank 0 that is started again at that moment learns that there has been a
// launch; the others may be told when rank 0 has started its command, or a moment later (Config.Head, Node.Launched).
//
// A rank that starts says so to rank 0 in one packet, sealed as all gossip is: rank 0, which calls those who do not answer about once a second,
// then calls at once. That packet may be lost, and gossip, which the rank joins if it is not called within a moment, tells the same.
//
// A rank whose call rank 0 does not get, because it is not where the environment says or its name does not resolve yet, calls itself:
// here(record) to rank 0, or to any other rank, who passes it on and answers where rank 0 is.
//
// # Loss
//
// After go nobody is given up on one view alone. A control connection that ends is dialled again by rank 0; if it does not come
// back within the grace, or the port refuses, or somebody else answers there, up to three other ranks are asked to look (look, seen), and
// only when none of them sees the rank either is it lost. A process that is stopped for a while keeps its connections, and nothing
// happens at all. A rank that has lost rank 0 asks in the same way, and so learns the outcome from one that was told it. Gossip, whose
// word takes half a minute, ends with the launch: nothing ticks while the job runs.
//
// # Starts
//
// A rank is known by the nonce of its start. Before go a restarted container replaces its predecessor under a new epoch;
// after go it ends the job, because the launch that runs does not hold it. So does a restarted rank 0 for those who have acknowledged a
// roster of its predecessor, which may have launched before anybody was told.
//
// Where nobody knows the ranks (containers behind one name that cannot tell their index), the one that comes first in an
// order of what all of them say becomes the coordinator once it has heard as many as the job has; ranks are then given in
// that order. Two that disagree cannot both commit, since each would need the other's acknowledgement.
//
// # The port
//
// Port carries everything on one number: SSH and gossip streams on TCP, told apart by their first byte, and gossip packets
// on UDP. Where UDP is blocked the rendezvous completes all the same.
package rendezvous
