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

// keepJoined tries each configured address until it has answered once: two groups of agents that never met would
// not find each other otherwise. While this agent is alone it tries all of them, and the members of its last run.
// While others believe this agent to be at another address, it contacts the configured ones repeatedly: they
// accept a new address once the old one has failed, and would otherwise learn it half a minute later. While there is
// nothing to try it waits for news of members.
func (d *Discovery) keepJoined(ctx context.Context, configured, before []string) {
	left := configured
	pause := firstPause
	for {
		changed, heard := d.changed.Wait(), d.heard.Wait()
		if d.alone() {
			left = append(append([]string{}, configured...), before...)
		}
		left = d.tryJoin(ctx, left)
		if d.misplaced() {
			left, pause = configured, min(pause, movedPause)
		}
		if len(left) == 0 {
			pause = firstPause
			select { // until this agent may be alone, or believed to be elsewhere
			case <-ctx.Done():
				return
			case <-changed:
			case <-heard:
			}
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
			d.log.Debug("an agent does not answer and will be tried again", "address", a, "error", err)
			left = append(left, a)
		}
	}
	return left
}

// heardOf records where another agent believes this one to be.
func (d *Discovery) heardOf(address string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.told[address] = true
	d.heard.Notify()
}

// misplaced reports whether another agent, when last contacted, believed this one to be at another address.
func (d *Discovery) misplaced() bool {
	here := d.Addr()
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.told, here)
	elsewhere := len(d.told) > 0
	clear(d.told)
	return elsewhere
}

// alone reports whether no other agent is known to be alive.
func (d *Discovery) alone() bool { return d.Alive() < 2 }

// lastSeen reads the addresses of other agents from the last run, including agents that were unreachable at its end.
// Serf itself tries them only once, at its start.
func lastSeen(snapshot string) ([]string, error) {
	if snapshot == "" {
		return nil, nil
	}
	f, err := os.Open(snapshot)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the last known members: %w", err)
	}
	seen := map[string]string{} // the latest address of each
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		if rest, ok := strings.CutPrefix(lines.Text(), "alive: "); ok {
			if name, address, ok := strings.Cut(rest, " "); ok {
				seen[name] = address
			}
		}
	}
	if err := errors.Join(lines.Err(), f.Close()); err != nil {
		return nil, fmt.Errorf("read the last known members: %w", err)
	}
	return slices.Sorted(maps.Values(seen)), nil
}
