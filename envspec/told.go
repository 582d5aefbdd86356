package envspec

// told holds what a scheduler gives and Job has no field for. Once a scheduler has been read, the functions that derive
// ranks, slots and ports use it.
type told struct {
	// contradiction is an error that does not keep the rest of the environment from being read.
	contradiction *VarError

	counts map[string]variable  // which variable gave the number of containers of a role
	origin map[peerKey]variable // which variable gave the place of a peer

	gpus    map[string]int // GPUs in each container of a role
	ownGPUs int            // GPUs in this container

	launchOnly map[string]bool       // roles that compute nothing
	slots      map[peerKey]slotCount // slots of single containers, from a host list
	eachSlots  slotCount             // slots of every container
	ownSlots   slotCount             // slots of this container

	container string // this container's name, as docker's DNS told it
	inPod     bool   // the scheduler names pods

	spread   bool // the scheduler gives containers no port: spreadPorts gives them one
	jobPort  int  // replaces defaultPort
	openSize bool // the size may stay unknown in this container
}

// slotCount is a number of slots and the variable that gave it. The variable has no name where no number was given.
type slotCount struct {
	n    int
	from variable
}

type peerKey struct {
	role  string
	index int
}

func newTold() told {
	return told{
		counts: make(map[string]variable), origin: make(map[peerKey]variable), gpus: make(map[string]int),
		launchOnly: make(map[string]bool), slots: make(map[peerKey]slotCount),
	}
}

// forgetPeers drops what belongs to the scheduler's roles and peers, which PAIINIT_PEERS replaces.
func (t *told) forgetPeers() {
	kept := *t
	*t = newTold()
	t.ownGPUs, t.jobPort, t.container, t.inPod = kept.ownGPUs, kept.jobPort, kept.container, kept.inPod
}

// slotsOf returns the slots that the scheduler gives to a container.
func (t *told) slotsOf(role string, index int) slotCount {
	if s, ok := t.slots[peerKey{role, index}]; ok {
		return s
	}
	return t.eachSlots
}
