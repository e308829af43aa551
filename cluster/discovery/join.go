package discovery

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"time"
)

// keepJoined tries each configured address until it has answered once: two groups of
// agents that never met would not find each other otherwise. While this agent is
// alone it tries all of them, and those that were there before it was started. While others
// take it to be elsewhere, it tells those that are configured where it is, again and again: a new
// address is believed when the old one has failed, and would be heard of half a minute later.
func (d *Discovery) keepJoined(ctx context.Context, configured, before []string) {
	left := configured
	pause := firstPause
	for {
		if d.alone() {
			left = append(append([]string{}, configured...), before...)
		}
		left = d.tryJoin(ctx, left)
		if d.misplaced() {
			left, pause = configured, min(pause, movedPause)
		}
		if len(left) == 0 {
			pause = firstPause
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause/2 + rand.N(pause/2)): // jitter
		}
		pause = min(2*pause, lastPause)
	}
}

// tryJoin returns the addresses that did not answer.
func (d *Discovery) tryJoin(ctx context.Context, addresses []string) (left []string) {
	for _, a := range addresses {
		if ctx.Err() != nil {
			return left
		}
		if _, err := d.Join(a); err != nil {
			d.log.Debug("an agent does not answer; it is tried again", "address", a, "error", err)
			left = append(left, a)
		}
	}
	return left
}

// heardOf notes where another agent believes this one to be.
func (d *Discovery) heardOf(address string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.told[address] = true
}

// misplaced says that another agent believed this one to be elsewhere when it was last talked to.
func (d *Discovery) misplaced() bool {
	here := d.Addr()
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.told, here)
	elsewhere := len(d.told) > 0
	clear(d.told)
	return elsewhere
}

// alone says that no other agent is known to be alive.
func (d *Discovery) alone() bool { return d.Alive() < 2 }

// lastSeen reads where other agents were before this one was ended, those included that
// it could not reach any more. Serf tries the others once at its start, and then not again.
func lastSeen(snapshot string) ([]string, error) {
	if snapshot == "" {
		return nil, nil
	}
	f, err := os.Open(snapshot)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read who was there last: %w", err)
	}
	seen := map[string]string{} // the newest address of each
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		if rest, ok := strings.CutPrefix(lines.Text(), "alive: "); ok {
			if name, address, ok := strings.Cut(rest, " "); ok {
				seen[name] = address
			}
		}
	}
	if err := errors.Join(lines.Err(), f.Close()); err != nil {
		return nil, fmt.Errorf("read who was there last: %w", err)
	}
	return slices.Sorted(maps.Values(seen)), nil
}
