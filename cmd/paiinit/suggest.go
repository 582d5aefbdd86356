package main

import "strings"

// ownCommands returns the commands of this program that a person may have meant.
func ownCommands() []string {
	return []string{
		"run", "rsh", "each", "status", "wait", "barrier", "hosts", "hostfile", "env", "rdma", "version", "help",
	}
}

// mistyped returns the command of this program that a word most likely means, or "" if it resembles none.
func mistyped(word string) string {
	best, least := "", 1+len(word)/3
	for _, name := range ownCommands() {
		if d := distance(strings.ToLower(word), name); d < least {
			best, least = name, d
		}
	}
	return best
}

// distance returns the number of insertions, deletions, replacements and swaps of neighbours that turn one word into
// the other (optimal string alignment).
func distance(a, b string) int {
	rows := make([][]int, len(a)+1)
	for i := range rows {
		rows[i] = make([]int, len(b)+1)
		rows[i][0] = i
	}
	for j := range rows[0] {
		rows[0][j] = j
	}
	for i := 1; i <= len(a); i++ {
		for j := 1; j <= len(b); j++ {
			replace := 1
			if a[i-1] == b[j-1] {
				replace = 0
			}
			rows[i][j] = min(rows[i-1][j]+1, rows[i][j-1]+1, rows[i-1][j-1]+replace)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				rows[i][j] = min(rows[i][j], rows[i-2][j-2]+1)
			}
		}
	}
	return rows[len(a)][len(b)]
}
