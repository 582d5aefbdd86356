// Package integration tests the real binary with real launchers: paiinit is PID 1 of many hosts made of namespaces
// (package lab). It needs root or user namespaces, iproute2, and Debian's Open MPI 4, MPICH and python3 with mpi4py. A
// test that lacks a program says so and skips, or fails if PAIINIT_TEST_REQUIRE is set.
package integration
