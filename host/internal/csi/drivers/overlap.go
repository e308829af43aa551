package drivers

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/pannier/pannier/host/internal/managed"
	"github.com/pannier/pannier/sdk/storage"
)

// A driver that may run as two processes side by side (Spec.Overlap) is replaced without a break. Each process listens
// on a socket of its own, and the endpoint is a link to the serving process's socket. A new program is started next to
// it, and is asked what the old one was asked. If it answers and has lost nothing, the link is led to it, and the old
// process is ended after its last call. If not, the new process is ended, and nobody has noticed.
//
// No process may listen on the endpoint itself: most remove their socket when they end, and that would be the next
// one's then.

// ownSockets end the names of the sockets. One is in use by the process that serves, or was last.
var ownSockets = []string{".1", ".2"}

// on is the spec of a process that listens on a socket in the place of the endpoint: the socket's path is replaced
// wherever it is a whole path.
func (s Spec) on(socket string) Spec {
	path := s.socket()
	if socket == path {
		return s
	}
	whole := regexp.MustCompile(`(^|[^A-Za-z0-9._-])` + regexp.QuoteMeta(path) + `($|[^A-Za-z0-9._/-])`)
	replace := func(text string) string {
		return whole.ReplaceAllStringFunc(text, func(m string) string { return strings.Replace(m, path, socket, 1) })
	}
	s.Command = slices.Clone(s.Command)
	for n := range s.Command[1:] {
		s.Command[n+1] = replace(s.Command[n+1])
	}
	env := map[string]string{}
	for name, value := range s.Env {
		if !strings.HasPrefix(value, "file://") {
			value = replace(value)
		}
		env[name] = value
	}
	s.Env, s.Endpoint = env, "unix://"+socket
	return s
}

// examine waits until a process next to the one that serves is healthy, and compares the two.
func (c *conn) examine(ctx context.Context) error {
	i, p, was := c.i, c.p, c.i.snapshot()
	socket := p.Run.Address
	ctx, cancel := context.WithCancelCause(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel(nil)
	wg.Go(func() {
		select {
		case <-p.Done(): // the set says how
			cancel(errors.New("it did not get healthy"))
		case <-p.Beside.Done():
			cancel(managed.NewNotTried(errors.New("the process that serves has ended")))
		case <-ctx.Done():
		}
	})
	seen, problem := was, error(nil)
	for gone(socket) && sleep(ctx, i.r.timing.retryMin) {
		problem = fmt.Errorf("it does not listen on %s", socket)
	}
	for ctx.Err() == nil {
		away := c.ask(ctx, func(fp storage.Fingerprint) error {
			if seen.conclude(fp); seen.Healthy {
				return errReported
			}
			if ctx.Err() == nil { // else it was interrupted
				problem = errors.New(seen.Message)
			}
			return nil
		})
		if errors.Is(away, errReported) {
			lost := lostBy(was.Fingerprint, seen.Fingerprint)
			if len(lost) > 0 {
				return errors.New("it is not what it was: " + strings.Join(lost, ", "))
			}
			c.seen = seen.Fingerprint
			return nil
		}
		if problem == nil && ctx.Err() == nil {
			problem = managed.NewNotTried(fmt.Errorf("it could not be asked: %w", away))
		}
		sleep(ctx, i.r.timing.retryMin)
	}
	if problem == nil || !errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return context.Cause(ctx)
	}
	return problem
}

// ask has a storage plugin report on the process.
func (c *conn) ask(ctx context.Context, report func(storage.Fingerprint) error) error {
	i := c.i
	client, release, err := i.r.cfg.Storage(ctx, i.spec.Plugin)
	if err != nil {
		return err
	}
	defer release()
	opts := storage.FingerprintOptions{Interval: i.r.timing.fingerprintEvery, ProbeTimeout: i.spec.HealthTimeout}
	return client.Fingerprint(ctx, storage.Driver{ID: i.spec.ID, Endpoint: "unix://" + c.p.Run.Address}, opts, report)
}

// lostBy lists what a driver no longer has with another program. It may get another limit, and more topology.
func lostBy(was, is storage.Fingerprint) []string {
	if was.Provider == "" {
		return nil // it never answered
	}
	if was.Node != nil && is.Node != nil {
		node := *is.Node
		node.MaxVolumes = was.Node.MaxVolumes
		kept := maps.Clone(node.AccessibleTopology)
		maps.DeleteFunc(kept, func(key, _ string) bool { _, had := was.Node.AccessibleTopology[key]; return !had })
		if maps.Equal(kept, was.Node.AccessibleTopology) {
			node.AccessibleTopology = was.Node.AccessibleTopology
		}
		is.Node = &node
	}
	return differences(was, is)
}

// Drain waits until nobody is connected to a process that was replaced: as long as a call may take.
func (c *conn) Drain(ctx context.Context, _ *time.Duration) {
	late := time.NewTimer(c.i.spec.longestCall())
	defer late.Stop()
	look := time.NewTicker(drainEvery)
	defer look.Stop()
	for connected(c.p.Run.Address) {
		select {
		case <-look.C:
		case <-c.p.Done():
			return
		case <-late.C:
			return
		case <-ctx.Done():
			return
		}
	}
}

// drainEvery is the time between two looks at what is connected to a process that was replaced.
const drainEvery = 20 * time.Millisecond

// longestCall is how long a call to the driver may take.
func (s Spec) longestCall() time.Duration {
	return max(s.Timeout("stage"), s.Timeout("unstage"), s.Timeout("publish"), s.Timeout("unpublish"))
}

// connected reports whether somebody is connected to a process's own socket, or that cannot be known. The accepted
// sockets of a process have the path that it listens on (proc(5), /proc/net/unix).
func connected(socket string) bool {
	f, err := os.Open("/proc/net/unix")
	if err != nil {
		return true
	}
	defer f.Close()
	const accepts, established = "00010000", "03"
	listens := false
	for lines := bufio.NewScanner(f); lines.Scan(); {
		// Num RefCount Protocol Flags Type St Inode Path
		field := strings.Fields(lines.Text())
		if len(field) < 8 || filepath.Clean(strings.Join(field[7:], " ")) != socket {
			continue
		}
		if field[5] == established {
			return true
		}
		listens = listens || field[3] == accepts
	}
	return !listens
}
