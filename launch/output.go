package launch

import "os"

// output is stderr and stdout of a command whose last lines are kept.
type output struct {
	lines    int
	err, out *tail // nil = the command writes to the file itself
	shared   bool  // both streams go to the same pipe, and err copies both in order
	same     bool  // both streams go to the same file
	file     *os.File
	since    int64 // the size of file when the command was started
}

// newOutput puts pipes in place of stderr, and of stdout if it is a pipe: launchers report on either. A stdout that is
// a regular file is read at the end. To find a hang, it also puts a pipe in place of a device or socket.
func newOutput(c Command, files []*os.File) (*output, error) {
	o := &output{lines: c.TailLines, file: files[1]}
	if c.TailLines == 0 {
		return o, nil
	}
	stdout, stderr := files[1], files[2]
	o.same = sameFile(stdout, stderr)
	piped := isPipe(stdout) || c.Hang.After > 0 && !c.Hang.Terminal && !isRegular(stdout)
	o.shared = piped && o.same
	var err error
	if o.err, err = newTail(stderr, o.shared, c.TailLines, c.TailHosts); err != nil {
		return nil, err
	}
	files[2] = o.err.w
	switch {
	case o.shared:
		files[1] = o.err.w
	case piped:
		if o.out, err = newTail(stdout, true, 0, nil); err != nil {
			o.started()
			o.finish(nil)
			return nil, err
		}
		files[1] = o.out.w
	default:
		if info, err := stdout.Stat(); err == nil {
			o.since = info.Size()
		}
	}
	return o, nil
}

// started closes the command's ends of the pipes in this process.
func (o *output) started() {
	for _, t := range []*tail{o.err, o.out} {
		if t != nil {
			_ = t.w.Close()
		}
	}
}

// finish passes on what the pipes still hold.
func (o *output) finish(stop <-chan os.Signal) {
	o.out.finish(stop)
	o.err.finish(stop)
}

// activity returns a number that changes when the command has written to a pipe.
func (o *output) activity() int { return o.out.activity() + o.err.activity() }

// fileState returns a text that changes when a stdout that is a regular file has changed.
func (o *output) fileState() string {
	if info, err := o.file.Stat(); err == nil && info.Mode().IsRegular() {
		return " " + stateOf(info)
	}
	return ""
}

// describe adds the last lines to the result.
func (o *output) describe(r *Result) {
	if o.err == nil {
		return
	}
	var stdout []string
	switch {
	case o.out != nil:
		stdout = texts(o.out.last())
	case !o.shared:
		b := fileEnd(o.file, o.since)
		stdout = splitLines(b, len(b) == recentBytes)
	}
	l := o.err.lastLines(stdout, o.lines, r.Status() != 0)
	r.Tail, r.OwnTail, r.Stdout, r.Blame, r.LostDaemon = l.stderr, l.own, l.stdout, l.blame, l.lostDaemon
	if o.same {
		r.Stdout = nil // it repeats stderr
	}
	for _, t := range []*tail{o.err, o.out} {
		if t != nil {
			t.mu.Lock()
			r.Unread += t.lost
			t.mu.Unlock()
		}
	}
}

// closedSignals returns a channel that asks to end at once.
func closedSignals() <-chan os.Signal {
	c := make(chan os.Signal)
	close(c)
	return c
}
