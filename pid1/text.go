package pid1

// Functions of packages bytes and strings, which import unicode: its tables would be initialised before the agent
// starts, and in every call of the remote shell.

// cutPrefix is strings.CutPrefix.
func cutPrefix(s, prefix string) (rest string, found bool) {
	if len(s) < len(prefix) || s[:len(prefix)] != prefix {
		return s, false
	}
	return s[len(prefix):], true
}

// split is strings.Split at one byte.
func split(s string, sep byte) []string {
	var fields []string
	begin := 0
	for i := range len(s) {
		if s[i] == sep {
			fields = append(fields, s[begin:i])
			begin = i + 1
		}
	}
	return append(fields, s[begin:])
}

// cut is bytes.Cut at one byte.
func cut(b []byte, sep byte) (before, after []byte, found bool) {
	for i := range b {
		if b[i] == sep {
			return b[:i], b[i+1:], true
		}
	}
	return b, nil, false
}

// hasPrefix is bytes.HasPrefix.
func hasPrefix(b []byte, prefix string) bool {
	return len(b) >= len(prefix) && string(b[:len(prefix)]) == prefix // the compiler compares without a copy
}

// contains is bytes.Contains.
func contains(b []byte, text string) bool {
	for i := range b {
		if hasPrefix(b[i:], text) {
			return true
		}
	}
	return false
}
