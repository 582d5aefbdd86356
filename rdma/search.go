package rdma

// Search runs Probe beside other work.
type Search struct {
	done     chan struct{}
	report   Report
	settings Flags
}

// Begin starts a brief search ([Config.Brief]). settings are the user's decision, FlagOff or FlagRequire; with FlagOff
// it looks at nothing. The caller must raise limits of locked memory before.
func Begin(c Config, settings Flags) *Search {
	c.Brief = true
	s := &Search{done: make(chan struct{}), settings: settings}
	if settings&FlagOff != 0 {
		close(s.done)
		return s
	}
	go func() { // the process may end before it does: a driver may hang
		defer close(s.done)
		s.report = Probe(c)
	}()
	return s
}

// Done is closed when the report is complete.
func (s *Search) Done() <-chan struct{} { return s.done }

// Report waits for the report.
func (s *Search) Report() Report {
	<-s.done
	return s.report
}

// Summary waits for the report and returns its summary for the other ranks.
func (s *Search) Summary() Summary {
	sum := s.Report().Summary()
	sum.Flags |= s.settings
	return sum
}
