package chaos

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
)

// did is a line of the log that the hosts' drivers write.
type did struct {
	at                        int64
	node, what, volume, where string
}

func readDone(path string) (all []did, err error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(text)) {
		words := strings.Fields(line)
		if len(words) != 5 {
			return nil, fmt.Errorf("%s has the line %q", path, line)
		}
		at, err := strconv.ParseInt(words[0], 10, 64)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		all = append(all, did{at, words[1], words[2], words[3], words[4]})
	}
	return all, nil
}

// fenced is what a host's fence, or a writer, unmounted, and when it had finished.
type fenced struct {
	Done      int64    `json:"done"`
	Unmounted []string `json:"unmounted"`
}

func readFenced(path string) (all []fenced, err error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	err = json.Unmarshal(text, &all)
	return all, err
}

// publication is an interval in which a node had a volume mounted.
type publication struct {
	node, volume, target string
	from, to             int64 // to == 0: until the end
}

// vouch is the word of an operator that nothing runs on a node any more, at a time of CLOCK_BOOTTIME.
type vouch struct {
	node string
	at   int64
}

// publications returns those of the drivers' log, each up to the moment at which the driver or the
// host's fence had unmounted it, or an operator vouched for its node.
func publications(done []did, fences []fenced, vouched []vouch) (all []publication) {
	for _, d := range done {
		switch d.what {
		case "publish":
			all = append(all, publication{node: d.node, volume: d.volume, target: d.where, from: d.at})
		case "unpublish":
			for n, p := range all {
				if p.to == 0 && p.node == d.node && p.target == d.where {
					all[n].to = d.at
				}
			}
		}
	}
	for n, p := range all {
		ends := func(at int64) {
			if at != 0 && p.from < at && (all[n].to == 0 || all[n].to > at) {
				all[n].to = at
			}
		}
		for _, f := range fences {
			if slices.Contains(f.Unmounted, p.target) {
				ends(f.Done)
			}
		}
		for _, v := range vouched {
			if v.node == p.node {
				ends(v.at)
			}
		}
	}
	return all
}

// twice describes each pair of nodes that had one volume published at the same time.
func twice(all []publication, volume string) (wrong []string) {
	for n, a := range all {
		for _, b := range all[n+1:] {
			if a.volume == volume && b.volume == volume && a.node != b.node && (a.to == 0 || b.from < a.to) &&
				(b.to == 0 || a.from < b.to) {
				wrong = append(wrong, fmt.Sprintf("volume %s was published on %s (%d to %d, %s) and on %s (%d to %d, %s) at once",
					volume, a.node, a.from, a.to, a.target, b.node, b.from, b.to, b.target))
			}
		}
	}
	return wrong
}

// wrote is what one workload wrote into a volume: the lines from first to last, at the times from
// and to.
type wrote struct {
	node, workload string
	first, last    int
	from, to       int64
}

// readWritten reads what the writers of a volume wrote, in file order: nothing, if the volume was deleted last.
func readWritten(path string) (all []wrote, err error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	n := 0
	for line := range strings.Lines(string(text)) {
		words := strings.Fields(line)
		if len(words) != 3 {
			return nil, fmt.Errorf("%s has the line %q", path, line)
		}
		at, err := strconv.ParseInt(words[0], 10, 64)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		who := slices.IndexFunc(all, func(w wrote) bool { return w.workload == words[2] })
		if who < 0 {
			who, all = len(all), append(all, wrote{node: words[1], workload: words[2], first: n, from: at})
		}
		all[who].last, all[who].to = n, at
		n++
	}
	return all, nil
}

// mixed describes each pair of workloads that wrote at the same time although the access mode
// allows one writer.
func mixed(all []wrote, access string) (wrong []string) {
	for n, a := range all {
		for _, b := range all[n+1:] {
			if (access != "single-node-multi-writer" || a.node != b.node) && a.first < b.last && b.first < a.last {
				wrong = append(wrong, fmt.Sprintf(
					"workload %s on %s (lines %d to %d) and workload %s on %s (lines %d to %d) wrote at once",
					a.workload, a.node, a.first, a.last, b.workload, b.node, b.first, b.last))
			}
		}
	}
	return wrong
}

// owners counts how often a volume was published on another node than before.
func owners(all []publication, volume string) (changes int) {
	last := ""
	for _, p := range all { // in the order of from
		if p.volume == volume && p.node != last {
			last = p.node
			changes++
		}
	}
	return max(0, changes-1)
}

// deleted describes each node that had a volume published while its driver deleted it.
func deleted(done []did, published []publication, volume string) (wrong []string) {
	for _, d := range done {
		for _, p := range published {
			if d.what == "delete" && d.volume == volume && p.volume == volume && p.from < d.at && (p.to == 0 || d.at < p.to) {
				wrong = append(wrong, fmt.Sprintf("volume %s was deleted at %d, while it was published on %s (%d to %d, %s)", volume,
					d.at, p.node, p.from, p.to, p.target))
			}
		}
	}
	return wrong
}

// after describes each workload that wrote after another node had published the volume.
func after(all []wrote, published []publication, volume string) (wrong []string) {
	for _, w := range all {
		for _, p := range published {
			if p.volume == volume && p.node != w.node && w.from < p.from && p.from < w.to {
				wrong = append(wrong, fmt.Sprintf("workload %s on %s wrote until %d, and node %s published volume %s at %d",
					w.workload, w.node, w.to, p.node, volume, p.from))
			}
		}
	}
	return wrong
}

// disorder describes each claim whose fencing token is not higher than that of a claim that was
// taken before it was requested: storage that compares tokens would reject the later holder.
func disorder(runs []run, tokens map[string]uint64) (wrong []string) {
	for _, a := range runs {
		for _, b := range runs {
			before := a.out == done && a.answered.Before(b.started)
			if before && tokens[a.id] != 0 && tokens[b.id] != 0 && tokens[a.id] >= tokens[b.id] {
				wrong = append(wrong, fmt.Sprintf("workload %s was started before %s, and its fencing token is %d, the other's %d",
					a.id, b.id, tokens[a.id], tokens[b.id]))
			}
		}
	}
	return wrong
}
