package rendezvous

// Roles returns the role of every rank.
func (r *Roster) Roles() (roles []string) {
	for _, m := range r.Members {
		roles = append(roles, m.Role)
	}
	return roles
}

// TaskPort returns the port that a rank reserves for its command, 0 if it reserves none.
func (r *Roster) TaskPort(role string, index int) int {
	m, _ := r.find(func(m Member) bool { return m.Role == role && m.Index == index })
	return m.Task
}

// OtherHost returns the first rank that reserves a port for the job and has another address than rank 0.
func (r *Roster) OtherHost() (Member, bool) {
	return r.find(func(m Member) bool {
		return m.Task != 0 && m.Addr.Addr().Unmap() != r.Members[0].Addr.Addr().Unmap()
	})
}
