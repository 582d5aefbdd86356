package hosts

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// ParseRanks reads a list of ranks, ranges of ranks and names, which may have duplicates; "" = all ranks. names has the
// names of every rank.
func ParseRanks(list string, names [][]string) ([]int, error) {
	var ranks []int
	if list == "" {
		for rank := range names {
			ranks = append(ranks, rank)
		}
		return ranks, nil
	}
	for word := range strings.SplitSeq(list, ",") {
		first, last, err := parseRange(strings.TrimSpace(word), names)
		if err != nil {
			return nil, err
		}
		for rank := first; rank <= last; rank++ {
			if !slices.Contains(ranks, rank) {
				ranks = append(ranks, rank)
			}
		}
	}
	return ranks, nil
}

func parseRange(word string, names [][]string) (first, last int, err error) {
	if named := slices.IndexFunc(names, func(own []string) bool { return slices.Contains(own, word) }); named >= 0 {
		return named, named, nil
	}
	from, to, isRange := strings.Cut(word, "-")
	if !isRange {
		to = from
	}
	first, err = strconv.Atoi(from)
	if err == nil {
		last, err = strconv.Atoi(to)
	}
	switch {
	case err != nil || from[0] == '+' || to[0] == '+':
		return 0, 0, fmt.Errorf("%q is not a rank, a range of ranks such as 3-5, or the name of a host", word)
	case first > last:
		return 0, 0, fmt.Errorf("%q: the first rank is higher than the last", word)
	case last >= len(names):
		return 0, 0, fmt.Errorf("%q: the job has the ranks 0 to %d", word, len(names)-1)
	}
	return first, last, nil
}
