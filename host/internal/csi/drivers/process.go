package drivers

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/pannier/pannier/host/internal/managed"
	"github.com/pannier/pannier/host/internal/system/process"
	"github.com/pannier/pannier/host/internal/system/program"
	"github.com/pannier/pannier/internal/trusted"
	"github.com/pannier/pannier/sdk/storage"
)

// crashLoop is how many times in a row a process must end soon after its start
// for that to be reported as a crash loop.
const crashLoop = 3

// manage makes the set of the driver's processes.
func (i *instance) manage() {
	key, t := i.spec.key(), i.r.timing
	name := "driver"
	if len(i.spec.Command) > 0 {
		name = filepath.Base(i.spec.Command[0])
	}
	i.procs = managed.New(managed.Config{
		Name: name, Store: managed.NewStore(copiesDir(i.r.cfg.DataDir, key)), Record: &i.rec.Record, Save: i.save,
		Admit:   func(_, _, _, sha string) error { return i.spec.checkSum(sha) },
		LogPath: i.logPath(), Log: i.log, StartTimeout: i.spec.HealthTimeout, StopTimeout: t.stopGrace,
		Restart:   managed.Restart{Min: t.restartMin, Max: t.restartMax, Stable: t.stable},
		Transport: transport{i},
		Hooks: managed.Hooks{
			Choose: i.program.choose, Served: i.serves, OnProbation: i.onProbation, Stops: i.stops, Report: i.show,
			Confirmed: i.r.cfg.Confirmed,
			Forget:    i.forgotten, NewMeter: i.newMeter,
			MayOverlap: func(p *managed.Process) bool { return i.endpoint().isLink(p.Run.Address) },
			KeepMounts: func() bool { return i.inUse() && !errors.Is(context.Cause(i.ctx), errForced) },
		},
	})
}

// newMeter makes the meter of a process, if the driver has limits.
func (i *instance) newMeter(giveUp func(error)) *managed.Meter {
	if i.spec.Limits == (process.Limits{}) {
		return nil
	}
	const by = "its limits allow"
	return managed.NewMeter(managed.Meter{Limits: i.spec.Limits, MemoryBy: by, ProcessesBy: by, GiveUp: giveUp})
}

// forgotten reports what a process has left behind, whose run is removed from the record.
func (i *instance) forgotten(run *managed.Run) error {
	if run.Process == nil || !slices.Contains(i.rec.Left, *run.Process) {
		return nil
	}
	pids := process.Left(*run.Process)
	if i.showLeft(); len(pids) > 0 {
		i.event("left", fmt.Sprintf("processes %v of process %d stay: they may serve mounts", pids, run.Process.PID), nil)
	}
	return nil
}

// makeCopiesDir makes the directory of the copies, which the driver must reach if it runs as another user.
func (i *instance) makeCopiesDir() error {
	dir, mode := copiesDir(i.r.cfg.DataDir, i.spec.key()), os.FileMode(0o700)
	if i.spec.User != "" {
		mode = 0o711
	}
	return errors.Join(os.MkdirAll(filepath.Dir(dir), 0o711), os.MkdirAll(dir, 0o700), os.Chmod(dir, mode))
}

// supervise keeps the driver's process running until ctx ends, and stops it then or leaves it running (stops).
func (i *instance) supervise(ctx context.Context) error {
	if err := i.makeCopiesDir(); err != nil {
		i.log.Error("the driver's program cannot be copied", "error", err)
	}
	helpers, cancel := context.WithCancel(context.WithoutCancel(ctx))
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	wg.Go(func() {
		file := i.spec.Command[0]
		managed.WatchFiles(helpers, filepath.Dir(file), func() []string { return []string{file} }, i.r.timing.programEvery,
			i.r.timing.tendEvery, nil, i.procs.Recheck)
	})
	err := i.procs.Run(ctx)
	if i.stops(nil) && !i.procs.KeepMounts() {
		err = errors.Join(err, i.endLeft(ctx))
	}
	if err != nil {
		return fmt.Errorf("stop driver %q: %w", i.spec.key(), err)
	}
	return nil
}

// clear stops the process of an earlier configuration.
func (i *instance) clear(ctx context.Context, why string) error {
	run := i.rec.Current()
	there := run != nil && slices.Contains(process.Left(*run.Process), run.Process.PID)
	err := i.procs.ClearAll(ctx, i.r.timing.stopGrace)
	if !i.procs.KeepMounts() {
		err = errors.Join(err, i.endLeft(ctx))
	}
	if err != nil {
		return fmt.Errorf("stop driver %q: %w", i.spec.key(), err)
	}
	if there {
		i.stopped(run.Process.PID, why)
	}
	return nil
}

// stopped reports that a process was stopped.
func (i *instance) stopped(pid int, why string) {
	i.update(func(d *Driver) {
		d.PID, d.Healthy = 0, false
		i.state = "stopped: " + why
	})
	i.event("stopped", fmt.Sprintf("process %d was stopped: %s", pid, why), map[string]string{"pid": strconv.Itoa(pid)})
}

// conn is a process of a driver. The storage plugin makes the calls.
type conn struct {
	i      *instance
	p      *managed.Process
	seen   storage.Fingerprint // of one that was tried
	began  time.Time
	late   time.Time // when it is looked at whether it is healthy
	stable bool
}

func (i transport) conn(p *managed.Process) *conn {
	now := time.Now()
	return &conn{i: i.instance, p: p, began: now, late: now.Add(i.spec.HealthTimeout)}
}

// transport starts and finds the processes of a driver.
type transport struct{ *instance }

// Start starts a process of the command. The first one is up at once; one next to it when it is as good as that.
func (i transport) Start(ctx context.Context, p *managed.Process, bin managed.Binary, fork func(process.Spec) error,
) (managed.Conn, error) {
	listen := i.endpoint().afterAnother
	if p.Beside != nil {
		listen = i.endpoint().beside
	}
	socket, err := listen()
	if err != nil {
		return nil, managed.NewNotTried(err)
	}
	s := i.spec.on(socket)
	env, err := environment(s, i.r.cfg.ReadSecret)
	if err != nil {
		return nil, managed.NewNotTried(err)
	}
	p.Run.Settings, p.Run.Address = runs(i.spec), socket
	if p.Beside == nil { // it serves from its fork on: the next host finds it by the intent
		i.rec.Serve(p.Run)
		i.serves(p, managed.Source{})
	}
	if err := fork(process.Spec{
		Token: process.NewToken(), Path: bin.Path, Name: s.Command[0], Args: s.Command[1:],
		Env:  env,
		Dir:  "/",
		User: s.User, DieWithHost: i.r.cfg.DieWithHost,
		NoNewPrivs: true, Limits: s.Limits,
	}); err != nil {
		return nil, err
	}
	c := i.conn(p)
	if p.Beside != nil {
		i.event("trying", fmt.Sprintf("its program has changed: process %d is tried next to process %d, which serves",
			p.PID(), p.Beside.PID()), nil)
		err = c.examine(ctx)
	}
	return c, err
}

// Reattach finds the process that an earlier host has started, unless its command is another one now.
func (i transport) Reattach(ctx context.Context, p *managed.Process) (managed.Conn, error) {
	if i.waiting == nil && i.rec.runsOtherwise(i.spec) {
		if !i.procs.AwaitConfirmed(ctx, p.Done()) {
			return nil, errChanged
		}
		pid := p.PID()
		if err := i.procs.Clear(ctx, p.Run, i.r.timing.stopGrace); err != nil {
			return nil, err
		}
		i.stopped(pid, errChanged.Error())
		return nil, errChanged
	}
	i.leadBack(p)
	return i.conn(p), nil
}

// Move makes the endpoint lead to a process.
func (i transport) Move(_ context.Context, from, to *managed.Process, _ *Swap, _ *time.Duration) error {
	if from != nil {
		if i.servesMounts(from) {
			return managed.NewNotTried(errors.New("the process that serves has file systems in use"))
		}
		if err := i.endpoint().lead(to.Run.Address); err != nil {
			return managed.NewNotTried(err)
		}
		i.stopWatch()
	}
	return nil
}

// Lost ends the watch of a process.
func (i transport) Lost(ctx context.Context, p *managed.Process, why error) {
	i.stopWatch()
	if why == nil || p.Ended() {
		return
	}
	if errors.Is(why, managed.ErrLimit) { // what is left is a part of it
		if err := i.endLeft(ctx); err != nil {
			i.log.Error("what earlier processes of the driver left behind could not be stopped", "error", err)
		}
	}
	i.stopped(p.PID(), why.Error())
}

// leadBack makes the endpoint lead to the process that serves, if it listens where it was told to.
func (i *instance) leadBack(p *managed.Process) {
	at := i.endpoint()
	if own := p.Run.Address; own == at.path || at.leadsTo() == own || gone(own) {
		return
	}
	if err := at.lead(p.Run.Address); err != nil {
		i.log.Error("the endpoint does not lead to the driver's process", "error", err)
	}
}

// Watch returns why the process has to be replaced: one that this host started was not healthy in time.
func (c *conn) Watch(ctx context.Context) error {
	i := c.i
	stable := time.NewTimer(time.Until(c.began.Add(i.r.timing.stable)))
	defer stable.Stop()
	if c.stable {
		stable.Stop()
	}
	late := time.NewTimer(time.Until(c.late))
	defer late.Stop()
	tend := time.NewTicker(i.r.timing.tendEvery)
	defer tend.Stop()
	for {
		select {
		case <-stable.C:
			c.stable = true
			i.program.proved(c.p.Run.SHA256)
			i.update(func(d *Driver) { d.CrashLoop = false })
		case <-late.C:
			c.late = time.Now().Add(i.spec.HealthTimeout)
			late.Reset(i.spec.HealthTimeout)
			if why := i.late(); why != "" && !c.p.Found {
				return errors.New(why)
			}
		case <-i.gotHealthy:
			i.program.timeSwap()
		case <-tend.C:
			i.tend(ctx)
		case <-ctx.Done():
			return nil
		}
	}
}

// Stop does nothing: a driver is asked by a signal.
func (c *conn) Stop(context.Context) error { return nil }

// Close does nothing: this host has no connection.
func (c *conn) Close() {}

// late returns why a process that was never healthy should end, once a storage plugin has checked it; empty: it was
// healthy. Such a one is never ended for being slow: volumes are mounted through it.
func (i *instance) late() (why string) {
	i.r.mu.Lock()
	defer i.r.mu.Unlock()
	i.starting = false
	if !i.answered || i.wasHealthy {
		return ""
	}
	return fmt.Sprintf("it was not healthy within %s: %s", i.spec.HealthTimeout, i.driver.Message)
}

// serves records which program to go back to: the last one that worked.
func (i *instance) serves(p *managed.Process, _ managed.Source) (undo func()) {
	good := i.rec.Good
	if p.Beside != nil && i.worked() {
		i.rec.Good = p.Beside.Run.SHA256
	}
	i.rec.LastGood = i.rec.Good
	i.rec.KeepNewest(2)
	return func() { i.rec.Good = good }
}

// onProbation reports whether a failure of a program goes back to the one that worked before: it never got healthy, or
// has ended several times in a row.
func (i *instance) onProbation(p *managed.Process, _ string, times int) bool {
	return p == nil || !i.worked() || times >= crashLoop
}

// stops reports whether the process ends with this instance.
func (i *instance) stops(p *managed.Process) bool {
	return !errors.Is(context.Cause(i.ctx), errLeave) ||
		p != nil && !p.Found && !managed.IsConfirmed(i.r.cfg.Confirmed) && !i.inUse()
}

// show shows what has happened.
func (i *instance) show(e managed.Event) {
	switch e.What {
	case managed.Up:
		i.began(e.Process, false)
		i.program.collect()
	case managed.Exchanging:
		if i.worked() {
			i.rec.Good = e.Swap.From.SHA256
		}
		i.swapped(e, "swapped", "its program has changed from sha256:%.12s to sha256:%.12s: it is restarted, and calls wait",
			e.Swap.From.SHA256, e.Swap.To.SHA256)
	case managed.Swapped:
		i.swapped(e, "swapped", "its program has changed from sha256:%.12s to sha256:%.12s: process %d serves in the place of "+
			"the one before, which ends after its last call", e.Swap.From.SHA256, e.Swap.To.SHA256, e.Process.PID())
		i.began(e.Process, true)
	case managed.NotSwapped:
		i.leadBack(e.Process) // the new process may have been in the way
		if managed.IsNotTried(e.Err) {
			i.program.is("its program has changed, and waits: " + e.Err.Error())
			return
		}
		i.swapped(e, "refused", "sha256:%.12s is refused, and sha256:%.12s serves on: %v", e.Swap.To.SHA256,
			e.Swap.From.SHA256, e.Err)
	case managed.RolledBack:
		i.update(func(d *Driver) {
			d.PID, d.Healthy, d.checked = 0, false, true
			i.state = e.Err.Error()
		})
		i.swapped(e, "rolled-back", "sha256:%.12s is refused, and sha256:%.12s runs again: %v", e.Swap.From.SHA256,
			e.Swap.To.SHA256, e.Err)
	case managed.Ended, managed.Failed:
		if !errors.Is(e.Err, errChanged) {
			i.ended(e)
		}
	case managed.Drained:
		i.showLeft()
		i.program.collect()
		if e.Err == nil {
			i.event("stopped", fmt.Sprintf("process %d, which was replaced, has ended", e.Process.PID()), nil)
		}
	case managed.Stopped:
		if e.Process != nil && e.Err == nil {
			why := context.Cause(i.ctx)
			if errors.Is(why, errLeave) {
				why = errStop
			}
			i.stopped(e.Process.PID(), why.Error())
		}
	}
}

// swapped shows a change of the program, or a refused one.
func (i *instance) swapped(e managed.Event, kind, format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	i.program.timing = e.Swap.Took == 0
	i.update(func(d *Driver) {
		if d.Swaps, d.ProgramProblem = i.rec.Swaps, ""; kind == "refused" {
			d.ProgramProblem = text
		}
	})
	i.event(kind, text, nil)
}

// ended records that there is no process, and when the next one starts.
func (i *instance) ended(e managed.Event) {
	why, soon, wait := e.Err.Error(), e.Times, e.Wait
	next := fmt.Sprintf("%s; the next start is in %s", why, wait.Round(100*time.Millisecond))
	if soon >= crashLoop {
		next = fmt.Sprintf("crash loop, %d times in a row: %s", soon, next)
	}
	before, after := i.update(func(d *Driver) {
		d.PID, d.CrashLoop = 0, soon >= crashLoop
		d.Healthy, d.checked = false, true
		i.state = next
	})
	if before.PID != 0 {
		i.event("exited", why, map[string]string{"pid": strconv.Itoa(before.PID), "next_start_in": wait.String()})
	} else {
		i.event("failed", why, map[string]string{"next_start_in": wait.String()})
	}
	if before.Healthy || !before.checked {
		i.event("unhealthy", after.Message, nil)
	}
	if after.CrashLoop && !before.CrashLoop {
		i.event("crash-loop", after.Message, map[string]string{"times": strconv.Itoa(soon)})
	}
}

// defaultPath is the PATH of drivers if the host has none.
const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// checkProgram refuses a program that others than the host's own users could replace, or one with
// another checksum.
func (s Spec) checkProgram() error {
	file := s.Command[0]
	if err := trusted.File(file); err != nil {
		return fmt.Errorf("the program: %w", err)
	}
	if s.Checksum == "" {
		return nil
	}
	sha, err := program.Sum(file)
	if err != nil {
		return fmt.Errorf("the program: %w", err)
	}
	if err := s.checkSum(sha); err != nil {
		return fmt.Errorf("the program: %w", err)
	}
	return nil
}

// checkSum returns why a program with that checksum may not run.
func (s Spec) checkSum(sha string) error {
	if got := "sha256:" + sha; s.Checksum != "" && got != s.Checksum {
		return fmt.Errorf("%s has the checksum %s, and the configuration wants %s: install the right one, or change checksum",
			s.Command[0], got, s.Checksum)
	}
	return nil
}

// environment is the driver's whole environment: nothing of the host's own may leak.
func environment(s Spec, readSecret func(ref string) (string, error)) ([]string, error) {
	path := os.Getenv("PATH")
	if path == "" {
		path = defaultPath
	}
	env := []string{"PATH=" + path, "CSI_ENDPOINT=" + s.Endpoint}
	if uid, ok := os.LookupEnv("SUDO_UID"); ok { // so that csi-local trusts whom the agent trusts
		env = append(env, "SUDO_UID="+uid)
	}
	for _, name := range slices.Sorted(maps.Keys(s.Env)) {
		value := s.Env[name]
		if strings.HasPrefix(value, "file://") {
			var err error
			if value, err = readSecret(value); err != nil {
				return nil, fmt.Errorf("env: %s: %w", name, err)
			}
		}
		env = append(env, name+"="+value) // the last one of a name counts: PATH can be replaced
	}
	return env, nil
}

// began shows a new or found process, resets what was known of the one before it, and watches it.
func (i *instance) began(p *managed.Process, tookOver bool) {
	kind, message := "started", fmt.Sprintf("started process %d", p.PID())
	switch {
	case p.Found:
		kind, message = "found", fmt.Sprintf("found process %d, which an earlier host started", p.PID())
	case tookOver:
		message = fmt.Sprintf("process %d has taken over", p.PID())
	}
	i.update(func(d *Driver) {
		if !p.Found && i.startedOnce {
			d.Restarts++
		}
		i.startedOnce = true
		i.answered, i.wasHealthy, i.starting = false, false, !p.Found
		d.Program, d.Swaps = p.Run.SHA256, i.rec.Swaps
		d.PID, d.Started = p.PID(), p.Run.Process.StartTime
		i.state = "waiting for the driver's first answer"
	})
	i.event(kind, message, map[string]string{"pid": strconv.Itoa(p.PID())})
	if tookOver {
		i.report(p.Conn.(*conn).seen)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var watching sync.WaitGroup
	i.stopWatch = func() { cancel(); watching.Wait() }
	watching.Go(func() { watcher{i}.watch(ctx) })
}

func (i *instance) save() error { return i.rec.save(i.r.cfg.DataDir) }

func (i *instance) logPath() string { return logPath(i.r.cfg.DataDir, i.spec.key()) }
