// Package initspec is the specification of paiinit as the init of a container, as tests. Every row of the list in
// spec_test.go is one thing that an init has to do right. The same list runs on several drivers, which are ways to make
// a container: namespaces as root, namespaces of a user, and Docker with everything and with almost nothing allowed. In
// all of them the static binary is the first process, with busybox and the program inside beside it.
//
// The package does nothing else than test.
package initspec
