// Package vm boots a kernel with verbs devices in a virtual machine, for tests. The kernels of most hosts lack rxe,
// which makes a verbs device from any network interface, and containers share the kernel of their host.
//
// A machine has no disk. Its initial file system contains the programs of a test, their libraries, and the guest
// (package guest), which is the init of the machine and runs one command after another for the test. The kernel is
// Debian's: the package is unpacked into a cache and never installed. The processor is emulated, because test machines
// often lack KVM or have it only in part; without KVM a machine boots in a few seconds.
package vm
