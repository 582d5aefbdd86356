package rdma

// Search is a Probe that runs beside other work.
type Search struct {
	done     chan struct{}
	report   Report
	settings Flags
}

// Begin begins to look at the devices. settings are what the user has decided, FlagOff or FlagRequire; with FlagOff it
// looks at nothing. Limits of memory must have been raised before.
func Begin(c Config, settings Flags) *Search {
	s := &Search{done: make(chan struct{}), settings: settings}
	if settings&FlagOff != 0 {
		close(s.done)
		return s
	}
	go func() { // the end of the process does not wait for it: a driver may hang
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

// Summary waits for the report, and returns what the other ranks judge.
func (s *Search) Summary() Summary {
	sum := s.Report().Summary()
	sum.Flags |= s.settings
	return sum
}
