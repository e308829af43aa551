package conformance

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"github.com/pannier/pannier/sdk/wire"
)

// together is how many checks run in parallel: most of the time they wait.
const together = 6

// maxBase is the longest path of a directory for temporary files below which sockets can have their address.
const maxBase = 50

// Run checks the binary and reports. It returns an error only if the configuration makes checking impossible; the
// plugin's faults are in the report.
func Run(ctx context.Context, cfg Config) (*Report, error) {
	return runChecks(ctx, cfg, checks)
}

func runChecks(ctx context.Context, cfg Config, checks []*Check) (*Report, error) {
	r, err := newRun(cfg)
	if err != nil {
		return nil, err
	}
	r.all(ctx, checks)
	r.removeMade(context.WithoutCancel(ctx))
	if err := r.clear(); err != nil {
		return nil, err
	}
	r.report.Binary = r.cfg.Binary
	return &r.report, ctx.Err()
}

// newRun makes a run with a directory of its own, which clear removes.
func newRun(cfg Config) (*run, error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	// A short path, because a Unix socket's address has at most 107 bytes (unix(7)).
	base := os.TempDir()
	if len(base) > maxBase {
		base = "/tmp"
	}
	dir, err := os.MkdirTemp(base, "pnc-")
	if err == nil {
		dir, err = filepath.EvalSymlinks(dir) // as in the table of mounts
	}
	if err != nil {
		return nil, fmt.Errorf("make the directory of the run: %w", err)
	}
	r := &run{
		cfg: cfg, dir: dir, heard: &heard{}, host: newHostSide(), made: map[string]func(context.Context, *process) error{},
		secret: "s3cr3t-" + rand.Text(),
	}
	r.authority, err = wire.NewAuthority()
	if err == nil {
		err = r.ownBackend()
	}
	if err != nil {
		return nil, errors.Join(err, r.clear())
	}
	return r, nil
}

// run is the state of one Run.
type run struct {
	cfg       Config
	dir       string
	authority *wire.Authority
	heard     *heard
	host      *hostSide
	issues    *jwts  // nil: the plugin's backend is not its own
	secret    string // prefix of every secret that the kit passes
	report    Report
	kind      *kind // set once info.kind has passed

	mu        sync.Mutex
	processes []*process
	folders   int
	given     []string // secrets that a backend has issued
	made      map[string]func(context.Context, *process) error
	only      sync.Mutex // held by the check that works with Config.Volume
}

// checking is a check in progress.
type checking struct {
	check *Check
	done  chan struct{} // closed when its result is available
	res   Result

	mu   sync.Mutex
	undo []func()
}

// ends registers f to run when the check is over, in reverse order.
func (c *checking) ends(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.undo = append(c.undo, f)
}

// end runs what was registered. That may register more.
func (c *checking) end() {
	for len(c.undo) > 0 {
		f := c.undo[len(c.undo)-1]
		c.undo = c.undo[:len(c.undo)-1]
		f()
	}
}

// skip is the error of a check that cannot be run.
type skip string

func (s skip) Error() string { return string(s) }

// all runs the checks, each after the checks that it depends on.
func (r *run) all(ctx context.Context, checks []*Check) {
	slots := make(chan struct{}, together)
	running := map[string]*checking{}
	var order []*checking
	var wait sync.WaitGroup
	for _, check := range checks {
		c := &checking{check: check, done: make(chan struct{}), res: Result{ID: check.ID, Says: check.Says, Fix: check.Fix}}
		running[check.ID] = c
		order = append(order, c)
	}
	for i, c := range order {
		wait.Go(func() {
			defer close(c.done)
			if c.check.last {
				for _, b := range order[:i] {
					<-b.done
				}
			}
			var err error
			for _, id := range c.check.after {
				<-running[id].done
				err = errors.Join(err, blocked(&running[id].res))
			}
			if kind := c.check.kind; err == nil && (kind == "" || kind == r.report.Kind) {
				slots <- struct{}{}
				err = r.one(ctx, c)
				<-slots
			}
			c.conclude(err)
		})
	}
	wait.Wait()
	for _, c := range order {
		if c.check.kind != "" && c.check.kind != r.report.Kind {
			continue
		}
		r.report.Results = append(r.report.Results, c.res)
	}
}

// blocked returns why a check that depends on another one is not run.
func blocked(before *Result) error {
	switch before.Status {
	case Passed:
		return nil
	case Failed:
		return skip("needs " + before.ID + " to pass")
	default:
		return skip(before.Reason)
	}
}

func (c *checking) conclude(err error) {
	var why skip
	switch {
	case err == nil:
		c.res.Status = Passed
	case errors.As(err, &why):
		c.res.Status, c.res.Reason = Skipped, string(why)
	default:
		c.res.Status, c.res.Reason = Failed, err.Error()
	}
}

// one runs a check. Everything that it started has ended when it returns.
func (r *run) one(ctx context.Context, c *checking) (err error) {
	began := time.Now()
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("the check itself panicked: %v\n%s", v, debug.Stack())
		}
		c.end()
		c.res.Took = time.Since(began)
	}()
	ctx, cancel := context.WithTimeout(ctx, checkTime)
	defer cancel()
	if ctx.Err() != nil {
		return skip("the run was interrupted")
	}
	return c.check.run(ctx, r, c)
}

func (r *run) started(p *process) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.processes = append(r.processes, p)
}

// folder makes a new directory for the check.
func (r *run) folder() (string, error) {
	r.mu.Lock()
	r.folders++
	path := filepath.Join(r.dir, fmt.Sprint("d", r.folders))
	r.mu.Unlock()
	return path, os.Mkdir(path, 0o700)
}

// makes records that a call may have made something in a backend, and how to remove it.
func (r *run) makes(what string, remove func(context.Context, *process) error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.made[what] = remove
}

// removeMade removes what calls may have made and no other call has removed. It reports what the plugin cannot remove.
func (r *run) removeMade(ctx context.Context) {
	if len(r.made) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, checkTime/2)
	defer cancel()
	c := &checking{}
	defer c.end()
	p, err := r.up(ctx, c)
	for _, what := range slices.Sorted(maps.Keys(r.made)) {
		left := err
		if err == nil {
			left = r.made[what](ctx, p)
		}
		if left != nil {
			r.leave("%s: %v", what, left)
		}
	}
}

// clear removes the run's directory, and nothing that is still mounted in it.
func (r *run) clear() error {
	r.host.close()
	r.issues.close()
	r.unmountBelow(r.dir)
	if points, err := mountsBelow(r.dir); err != nil || len(points) > 0 {
		return err
	}
	if err := os.RemoveAll(r.dir); err != nil {
		return fmt.Errorf("remove the directory of the run: %w", err)
	}
	return nil
}
