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
//	   ...until all ranks are registered...
//	   prepare(epoch, roster, hash)  -------->  checks the hash and its own entry
//	                  <-----------------------  ack(epoch, hash)
//	   ...until all have acknowledged...
//	   go(epoch)  --------------------------->  acts on it once
//	                  <-----------------------  started(epoch)
//	   ...the job runs; anybody may send stop(signal, reason)...
//	   done(outcome)  ----------------------->
//	                  <-----------------------  done-ack
//
// The phases of a rank:
//
//	            prepare, ack                  go
//	Gathering --------------> Prepared ----------------> Running
//	    ^  |                    |   |                       |
//	    |  |  rank lost, no ack |   |                       |
//	    |  +<-------------------+   |                       |
//	    |        (epoch + 1)        |                       |
//	    |                           v                       v
//	    +---- (rank 0 restarted)  Ended <--- done ------- Ended
//
// A rank is known by the nonce of its start. Before go a restarted container replaces its predecessor under a new epoch;
// after go it ends the job, because the launch that runs does not hold it.
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
