// Package integration tests the real binary: paiinit as PID 1 of many hosts made of namespaces (package lab), with
// real launchers. It assumes root or user namespaces, iproute2, Open MPI 4 and MPICH of Debian, and Debian's python3
// with mpi4py; a test that lacks something says so and is skipped, or fails if PAIINIT_TEST_REQUIRE is set.
package integration
