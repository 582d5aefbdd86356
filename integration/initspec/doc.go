// Package initspec is the specification of paiinit as the init of a container, as tests. Every row of the list in
// spec_test.go is one thing that an init has to do right. The same list runs on several drivers, which are ways to make
// a container: namespaces as root, namespaces of a user, and Docker with everything and with almost nothing allowed. In
// all of them the static binary is the first process, with busybox and the program inside beside it.
//
// # The cases of other inits
//
// The suites of tini 0.19 and dumb-init 1.2.5 (catatonit has none) ask for the following. Rows are named by their test.
//
//	exit status of the command, 0 to 255          TestAllStatuses, statuses
//	128+n for a command that a signal ended       deaths, terminate
//	a command that cannot be executed             cannotRun: 126 and 127 as a shell, not 1 or 2
//	orphans are reaped, as PID 1                  orphans, orphansWhileWaiting
//	and as a child subreaper                      behind
//	TERM, USR1, USR2 and the others are forwarded signals, terminate
//	signals of faults are forwarded               faults; tini and catatonit do not
//	TERM, QUIT, CONT, INT one after the other     repeated
//	the whole process group gets a signal         saveWithWorkers, by --signal group
//	the child alone gets it                       saveWithWorkers
//	what is left of the group gets TERM at the end daemonsAreAsked, saveInBackground
//	ignored and blocked signals stay so           ignored, inherited
//	the terminal's foreground is the command's    terminal, controlC, jobControl
//	TSTP, TTIN and TTOU stop, CONT continues      stoppedGroup; TestSignalsReachTheAgent in package pid1
//	standard files that are closed                closedFiles
//
// These do not apply:
//
//   - rewriting signals (dumb-init -r): the job catches the signal that its scheduler sends.
//   - remapping exit statuses (tini -e): schedulers decide by the status whether to retry.
//   - SIGSEGV ignored and SIGILL blocked at the start (tini): the Go runtime takes both before it runs our code.
//   - SIGTERM blocked at the start (tini): it would make a container that cannot be stopped.
//   - TSTP becomes STOP in a new session (dumb-init): the command has its own process group, in the same session.
//   - CONT in front of TERM (dumb-init): CONT goes with TERM to what is stopped, and to nothing else.
//   - the first HUP and CONT are swallowed (dumb-init): they come from giving up the terminal,
//     which paiinit does not do.
//   - the working directory / of the init (dumb-init): tested in package pid1, without a container.
//   - a parent's death (tini -p), warnings about reaping (tini -w), verbosity, licences and version texts: other flags.
package initspec
