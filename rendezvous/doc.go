// Package rendezvous turns N processes that know some addresses into one agreed, ranked roster, exactly once, and
// later into one outcome that all of them share.
//
// It hides how the ranks find each other (the environment's list, names that are resolved again and again, gossip),
// memberlist, and the protocol of the commit. Gossip needs seconds to show every rank to every rank and counts the dead
// for half a minute, so it finds, but never decides. Rank 0 decides, over one authenticated connection to every other
// rank that stays open. The caller opens these (Config.Dial) and hands in the incoming ones (Node.Accept).
//
// # The commit
//
// Rank 0 dials every rank whose address it learns, and greets it; every step is acknowledged. wire.go describes the
// messages.
//
//	rank 0                                     every other rank
//	   hello(record)  ----------------------->
//	                  <-----------------------  register(record, phase)
//	   waiting(missing)  -------------------->  so that each rank can say which ranks are missing, and why
//	   ...until all ranks are registered, and have told all that the launch needs...
//	   prepare(epoch, roster, hash)  -------->  checks the hash and its own entry
//	                  <-----------------------  ack(epoch, hash)
//	   ...until all have acknowledged: rank 0 acts on it; waiting(missing) again if a rank does not acknowledge...
//	   go(epoch)  --------------------------->  acts on it once
//	                  <-----------------------  started(epoch)
//	   ...the job runs; a rank may send stop(signal, reason), and so may rank 0...
//	   done(outcome)  ----------------------->
//	                  <-----------------------  done-ack
//	   ...until all have acknowledged or are gone: 5 s for a connected rank, 15 s for another...
//	   bye  --------------------------------->  leaves; rank 0 is the last
//
// The phases of a rank; Phase.mayBecome is the table, and every change goes through it:
//
//	+-----------+   prepare, ack   +----------+      go       +---------+
//	| Gathering | ---------------> | Prepared | ------------> | Running |
//	+-----------+ <--------------- +----------+               +---------+
//	      |        rank lost,           |  |                     |   |
//	      |        no ack:              |  | rank 0 is gone, or  | rank 0
//	      |        epoch + 1            |  | started again       | is gone
//	      |                             |  v                     v   |
//	      |                             | +------------------------+ |
//	      | done                   done | | asks the other ranks   | | done
//	      |                             | +------------------------+ |
//	      v                             v   | outcome    | nothing   v
//	+-----------------------------------------------+    |     (to Ended)
//	| Ended: knows the outcome, answers questions   |    |
//	+-----------------------------------------------+    |
//	      | bye, or rank 0 is gone for 1 s               |
//	      v                                              v
//	 leaves with the outcome                      leaves with LostError
//
// A job whose command fails can start again in place. Each launch is a generation, with a Node of its own: none of the
// arrows above goes back. Between two generations every rank proves that no process of the first one is left
// (generation.go):
//
//	rank 0                                     every other rank
//	   again(text)  ------------------------->  ends its processes
//	                  <-----------------------  cleared
//	   ...until all have cleared...
//	   next  -------------------------------->  leaves with ErrNext, and starts the node of the next generation
//	   hello(record, generation)  ----------->  Gathering
//
// A stop ends the job during this as at any other time. A lost rank counts as cleared when its address refuses or
// another container answers there, and at the latest 25 s after the order, because a rank that cannot reach rank 0 has
// ended its command by then (fenceTime): ranks that clear do not tell it that rank 0 is alive. Between two generations
// the ranks wait for each other as long as the caller sets. Where the job may restart (Config.Rejoin), the next start
// of a lost rank begins with the first generation, learns the current one from the greeting, and takes the place. The
// next start of a lost rank 0 learns it from the ranks that have outlived the last one (succession.go).
//
// A rank registers before it knows everything about itself, and registers again when it knows more. The version of
// its launcher is in the roster if it comes in time. The summary of its fabric is in every roster: a registration says
// that it is still to come, and rank 0 waits for it (Config.Fabric). What is prepared does not change. A rank that
// cannot take part in a launch registers in the same way and says why in its next message: that ends the job
// (Config.Unfit).
//
// Rank 0 tells the first three ranks to go at once, so that a restarted rank 0 learns from them that there has been a
// launch. It may tell the others when it has started its command, or a moment later (Config.GoDelay, Node.Launched).
//
// A starting rank announces itself to rank 0 in one packet, encrypted as all gossip is. Rank 0 dials silent ranks about
// once a second; on such a packet it dials at once, and acknowledges it. The rank repeats the packet, and joins gossip,
// which tells the same, if rank 0 neither dials nor acknowledges within a moment.
//
// If rank 0 cannot dial a rank, because the rank is not where the environment says or its name does not resolve yet,
// the rank dials: it sends announce(record) to rank 0, or to any other rank, which passes it on and answers where
// rank 0 is.
//
// # Overload
//
// Where many ranks start at once on few processors, only the dials of rank 0 must go on: the launch needs one login for
// each rank. Everything else that a rank does by itself (gossip, announcements) waits while rank 0 has acknowledged its
// packet, becomes rarer with each attempt that reaches rank 0, is spread over a time that grows with the number of
// ranks, and waits ten times as long as this process has had to wait for a processor (Config.Delay). So the time to the
// launch stays proportional to the number of ranks.
//
// # Loss
//
// After go no rank is given up on one view alone. Rank 0 dials again when a control connection ends. If it does not
// come back within the grace, or the port refuses, or another container answers there, rank 0 asks up to three other
// ranks to look (look, seen), and the rank is lost only if none of them sees it. A process that is stopped for a
// while keeps its connections. When it goes on, it may ask over them whether its generation does (Node.Confirm). A rank
// that has lost rank 0 asks in the same way, and so learns the outcome from a rank that was told it. Gossip ends with
// the launch: no timer runs beside the job.
//
// # Starts
//
// The nonce identifies one start of a rank. A second start never decides by itself: rank 0 asks the first one over
// its connection (ping, pong), or at its address if that connection is lost.
//
//	the first start      before go                             after go
//	answers              the second leaves (Statuses.Conflict) the second leaves (Statuses.Conflict)
//	does not, in 3 s     the second takes its place            the rank is lost: the launch does not hold,
//	or is not there      under a new epoch                     and the second leaves (Statuses.Retry)
//
// Two containers that both claim rank 0 and both answer end the job before go, with Statuses.Conflict: the rank that
// one of them should be never comes. A rank that is greeted by a second rank 0 asks the first one in the same way,
// and tells each of the other. After go the second one leaves alone; if the first one does not answer, the second one
// ends the job for the ranks that have acknowledged a roster of its predecessor, which may have launched before any
// rank was told.
//
// Where no container knows its rank, the first container in an order of all records becomes the coordinator once it has
// heard as many as the job has; ranks are then assigned in that order. Two sets of containers cannot both commit: a
// coordinator first dials every container and every address of the seeds that it knows. An address counts as dialled
// when a container there has said who it is, the dial has failed, or 5 s are over; a container with several addresses
// is one, by its nonce. A name with a role (Seed.Role) needs a container of that role.
//
//	finding                                          before go                 after go
//	more containers than ranks, and all answer       all leave (Conflict)      those without a rank leave (Conflict)
//	as many, but none of a role                      all wait, and say which
//	an answering one has another coordinator         it is waited for          it leaves (Conflict)
//
// # Ends before the launch
//
// Only a container that has proved to have the key of the job ends it, and all ranks end alike.
//
//	finding                                         who ends, and how
//	a rank is stopped, or cannot run its command    it stays until rank 0 has come, 5 s if it was stopped;
//	                                                rank 0 ends all with its status. A stopped rank also tells
//	                                                up to 8 other ranks, which tell rank 0: void if a later
//	                                                start of that rank registers within 2 s.
//	a rank's environment contradicts itself         as if it were stopped, with the caller's status
//	rank 0 is stopped                               all that come within 5 s, with its status
//	another size, two that claim rank 0             all, with ConflictError, at once
//	more containers than ranks that are agreed      all that are connected, with ConflictError, and one that
//	                                                leads itself instead if it calls within 5 s
//	another secret                                  the rank that finds it, with MissingError: see below
//	another job                                     the rank that finds it, with ConflictError: see below
//	a rank crashes                                  none: its next start takes its place
//
// A container that claims another secret or job proves nothing, and may belong to an earlier job that is about to end.
// It counts only if this container dialled an address of the rank, and again 5 s later (12 s for another job), after
// the name was resolved again, with no other address of that rank accepting and no refusal between. Rank 0 leaves when
// this holds for all missing ranks, the others when it holds for rank 0, late enough for the other side to find the
// same.
//
// # The port
//
// Port carries everything on one number: SSH, gossip streams and, if it is wanted, HTTP on TCP, told apart by their
// first byte whenever it comes, and gossip packets on UDP. A silent client is sent the SSH identification meanwhile;
// our gossip skips it, and a request that comes later goes to the SSH server.
// Where UDP is blocked the rendezvous completes all the same. Until a connection proves that its client knows the
// secret, it costs a bounded number of files, bytes and seconds.
package rendezvous
