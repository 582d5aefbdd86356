// Package vm boots a kernel with verbs devices in a virtual machine, for tests: rxe, which makes a device of any network
// interface, is not to be had in a container of this host's kernel.
//
// A machine has no disk. Its initial file system is made of the programs that a test names, the libraries that they need,
// and the guest (package guest), which is its init and runs one command after another for the test. The kernel is Debian's,
// from its package, which is unpacked and never installed; it is kept in a cache. The processor is emulated: KVM is seldom to
// be had where tests run, or not whole, and a machine is up in a few seconds without it.
package vm
