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
//	   ...until all have acknowledged or are gone: 5 s for a connected rank, 15 s for another...
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
// launch; the others may be told when rank 0 has started its command, or a moment later (Config.GoDelay, Node.Launched).
//
// A rank that starts says so to rank 0 in one packet, sealed as all gossip is: rank 0, which calls silent ranks
// about once a second, then calls at once, and acknowledges the packet. A packet may be lost: the rank repeats
// it, and joins gossip, which tells the same, if it is neither called nor acknowledged within a moment.
//
// A rank whose call rank 0 does not get, because it is not where the environment says or its name does not resolve yet, calls itself:
// announce(record) to rank 0, or to any other rank, who passes it on and answers where rank 0 is.
//
// # Overload
//
// Where many ranks start at once on few processors, or a cluster is slow for a while, only the calls of rank 0 must go
// on: each is a login, and the launch needs one for each rank. Everything else that a rank does by itself (gossip,
// here) is put off while rank 0 has acknowledged its packet, becomes rarer with each attempt that reaches rank 0, is
// spread over a time that grows with the number of ranks, and waits ten times as long as this process has had to wait
// for a processor (Config.Delay). So a slow machine gets less of it, not more, and the time to the launch stays
// proportional to the number of ranks.
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
// A rank is known by the nonce of its start. A second start of a rank never decides by itself: rank 0 asks the first
// one over its connection (ping, pong), or at its address if that connection is lost.
//
//	the first start      before go                            after go
//	answers              the second one leaves with 78        the second one leaves with 78
//	does not, in 3 s     the second one takes its place       the rank is lost: the launch does not hold
//	or is not there      under a new epoch                    the second one, which leaves with 75
//
// Two containers that both claim rank 0 and both answer end the job before go, with 78: the rank that one of them
// should have been never comes. A rank that is greeted by a second rank 0 asks the first one in the same way, and tells
// each of the other. After go the second one leaves alone; if the first one does not answer, the second one ends the
// job for the ranks that have acknowledged a roster of its predecessor, which may have launched before any rank was
// told.
//
// Where no container knows its rank (containers behind one name that cannot tell their index), the first container in
// an order of what all of them say becomes the coordinator once it has heard as many as the job has; ranks are then
// given in that order. Two sets of containers cannot both commit: a coordinator first tries every container and every
// address of the seeds that it knows. An address is tried when a container has said there who it is, the dial has
// failed, or 5 s are over; a container with several addresses is one, by its nonce. A name with a role (Seed.Role)
// needs a container of that role.
//
//	finding                                          before go                  after go
//	more containers than ranks, and all answer       all leave with 78          those without a rank leave with 78
//	as many, but none of a role                      all wait, and say which
//	an answering one has another coordinator         it is waited for           it leaves with 78
//
// # Ends before the launch
//
// Only a container that proved to have the key of the job ends it, and all ranks end alike.
//
//	finding                                         who ends, and how
//	a rank is stopped, or cannot run its command    it stays until rank 0 has come, 5 s where it was stopped;
//	                                                rank 0 ends all with its status. A stopped rank also tells
//	                                                up to 8 other ranks, which tell rank 0: void if a later
//	                                                start of that rank registers within 2 s.
//	a rank's environment contradicts itself         as if it were stopped, with 78
//	rank 0 is stopped                               all that come within 5 s, with its status
//	another size, two that claim rank 0             all, with 78, at once
//	more containers than ranks that are agreed      all that are connected, with 78
//	another secret                                  who finds it, with 77: see below
//	another job                                     who finds it, with 78: see below
//	a rank crashes                                  none: its next start takes its place
//
// Another secret or job is not proven by who says it, and what answers may be a container of yesterday that is about to
// end. A container believes it only of an address of the rank that it dialled itself, that it dialled again 5 s later
// (12 s for another job, which is longer than the default grace) after the name was resolved again, with no other
// address of that rank accepting and no refusal between. Rank 0 leaves when all missing ranks are of that kind, the
// others when rank 0 is, each of them late enough for the other side to find the same.
//
// # The port
//
// Port carries everything on one number: SSH and gossip streams on TCP, told apart by their first byte whenever it
// comes, and gossip packets on UDP. A client that is silent is sent the identification of SSH meanwhile; gossip of ours
// skips it. Where UDP is blocked the rendezvous completes all the same.
//
// Until a connection proves that its client knows the secret it costs a bounded number of files, of bytes and of
// seconds: while its first byte is awaited, while it waits to be read as gossip, and while it is.
package rendezvous
