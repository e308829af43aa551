package drivers

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/dustin/go-humanize"

	"github.com/pannier/pannier/host/internal/system/process"
	"github.com/pannier/pannier/host/internal/system/program"
	"github.com/pannier/pannier/internal/trusted"
)

// crashLoop is how many times in a row a process must end soon after its start
// for that to be reported as a crash loop.
const crashLoop = 3

// supervise keeps the driver's process running until ctx ends, and leaves it running then: run
// decides whether to stop it.
func (i *instance) supervise(ctx context.Context) {
	restart := newBackoff(i.r.timing.restartMin, i.r.timing.restartMax)
	soon := 0 // how many times in a row it ended soon after its start
	onStable := func() {
		soon = 0
		restart.Reset()
		i.proved()
		i.update(func(d *Driver) { d.CrashLoop = false })
	}
	for {
		fresh, err := i.findOrStart(ctx)
		if errors.Is(err, errChanged) {
			close(i.superseded)
			<-ctx.Done()
			return
		}
		why := fmt.Sprintf("it cannot be started: %v", err)
		if err == nil {
			why = i.follow(ctx, fresh, onStable)
		}
		if ctx.Err() != nil {
			return
		}
		if why == errProgram.Error() && i.proc == nil {
			soon = 0
			continue
		}
		soon++
		if i.rollBack(why, soon) {
			soon = 0
			continue
		}
		wait := restart.NextBackOff()
		i.ended(why, soon, wait)
		if !sleep(ctx, wait) {
			return
		}
	}
}

// follow watches the driver while its process runs, and returns why the process ended. onStable is
// called once the process has run long enough. When ctx ends first, the process keeps running, in
// i.proc.
func (i *instance) follow(ctx context.Context, fresh bool, onStable func()) (why string) {
	defer i.endBeside(ctx)
	why, above := i.observe(ctx, fresh, onStable)
	for why == errTakenOver.Error() {
		why, above = i.observe(ctx, true, onStable)
	}
	if why != "" {
		if err := i.stopProcess(ctx, why, !above); err != nil {
			i.log.Error("the driver's process could not be stopped", "error", err)
		}
		return why
	}
	if ctx.Err() != nil {
		return "the host stops"
	}
	why = fmt.Sprintf("its process %d ended: %s", i.proc.PID(), i.proc.Exit())
	i.bury(ctx)
	return why
}

// observe returns when the process has ended or ctx has, or with a reason to end the process: it is
// above a limit, or it is fresh and was never healthy within the driver's health timeout.
func (i *instance) observe(ctx context.Context, fresh bool, onStable func()) (why string, above bool) {
	var wg sync.WaitGroup
	defer wg.Wait()
	whole := ctx // what goes on with another process
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	wg.Go(func() { i.watch(ctx) })
	wg.Go(func() { i.tailLog(ctx) })

	stable := time.NewTimer(i.r.timing.stable)
	defer stable.Stop()
	healthTimeout := time.NewTicker(i.spec.HealthTimeout)
	defer healthTimeout.Stop()
	measure := time.NewTicker(i.r.timing.measureEvery)
	defer measure.Stop()
	if i.spec.Limits == (process.Limits{}) {
		measure.Stop()
	}
	tend := time.NewTicker(i.r.timing.tendEvery)
	defer tend.Stop()
	watch := i.watchProgram()
	defer watch.Stop()
	changed := watch.Changed()
	program := time.NewTimer(i.r.timing.programEvery)
	defer program.Stop()
	for {
		var beside <-chan verdict
		if i.beside != nil {
			beside = i.beside.ended
		}
		select {
		case <-stable.C:
			onStable()
		case <-healthTimeout.C:
			if why := i.late(); why != "" && fresh {
				return why, false
			}
		case <-measure.C:
			if why := exceeded(i.spec.Limits, i.proc.Usage()); why != "" {
				return why, true
			}
		case <-tend.C:
			i.tend(ctx)
			program.Reset(0) // the file system may be one that reports no changes
		case _, watched := <-changed:
			if !watched {
				changed = nil
			}
			program.Reset(0)
		case <-program.C:
			if changed == nil || !i.programSettled() {
				program.Reset(i.r.timing.programEvery)
			}
			i.timeSwap()
			i.giveUpOutdated()
			switch {
			case !i.changedProgram():
			case i.mayOverlap():
				i.try(whole)
			default:
				i.replaces()
				return errProgram.Error(), false
			}
		case v := <-beside:
			if i.judge(whole, v) {
				return errTakenOver.Error(), false
			}
		case <-i.proc.Done():
			return "", false
		case <-ctx.Done():
			return "", false
		}
	}
}

// exceeded returns which limit is exceeded; empty: none.
func exceeded(l process.Limits, u process.Usage) (why string) {
	switch {
	case l.Memory > 0 && u.Memory > l.Memory:
		return fmt.Sprintf("it uses %s of memory, its limits allow %s", humanize.IBytes(uint64(u.Memory)),
			humanize.IBytes(uint64(l.Memory)))
	case l.Processes > 0 && (u.Processes > l.Processes || u.Refused > 0):
		return fmt.Sprintf("it wants more processes and threads than its limits allow: %d", l.Processes)
	}
	return ""
}

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

// bury cleans up after a process that ended by itself. Processes left in its group may serve a file
// system: they stay while the driver is in use.
func (i *instance) bury(ctx context.Context) {
	ref := i.proc.Ref()
	i.rec.Launch = nil
	if i.inUse() {
		i.proc.Release()
		i.keepLeft(ref)
	} else {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), i.r.timing.stopGrace)
		defer cancel()
		if err := i.proc.Stop(ctx); err != nil {
			i.log.Error("what the driver's process left behind could not be stopped", "error", err)
		}
	}
	i.proc = nil
}

// ended records that there is no process, and when the next one starts.
func (i *instance) ended(why string, soon int, wait time.Duration) {
	if said := process.LastWords(i.logPath(), i.printed); said != "" {
		why += fmt.Sprintf("; it printed %q", said)
	}
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

// tailLog writes the process's output into the host's log, under the driver's id.
func (i *instance) tailLog(ctx context.Context) {
	if err := process.Tail(ctx, i.logPath(), i.log); err != nil {
		i.log.Warn("the driver's output is not logged any more", "error", err)
	}
}

// defaultPath is the PATH of drivers if the host has none.
const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// findOrStart sets i.proc to the process that an earlier host started, if its command is still the
// spec's or another one waits, else to a new one (fresh). It starts none while another
// configuration waits (errChanged).
func (i *instance) findOrStart(ctx context.Context) (fresh bool, err error) {
	i.clearBeside(ctx)
	if err := i.find(ctx); err != nil {
		return false, err
	}
	if i.proc != nil && i.waiting == nil && i.rec.Launch.Runs != runs(i.spec) {
		if err := i.stopProcess(ctx, errChanged.Error(), true); err != nil {
			return false, err
		}
	}
	if i.proc != nil {
		i.fresh = false
		i.leadBack()
		i.begun("found", fmt.Sprintf("found process %d, which an earlier host started", i.proc.PID()))
		return false, i.save() // it may have been an intent only
	}
	if i.waiting != nil {
		return false, errChanged
	}
	if err := i.startProcess(ctx); err != nil {
		return true, err
	}
	i.fresh = true
	i.begun("started", fmt.Sprintf("started process %d", i.proc.PID()))
	return true, nil
}

// find looks for the recorded process. If it has ended, i.proc stays nil, and what it left behind is
// cleaned up unless volumes are mounted through the driver (see bury).
func (i *instance) find(ctx context.Context) error {
	if i.proc != nil || i.rec.Launch == nil {
		return nil
	}
	proc, err := process.Find(ctx, i.rec.Launch.Process)
	if errors.Is(err, process.ErrGone) {
		ref := i.rec.Launch.Process
		i.rec.Launch = nil
		if i.inUse() {
			i.keepLeft(ref)
			return nil
		}
		ctx, cancel := context.WithTimeout(ctx, i.r.timing.stopGrace)
		defer cancel()
		return process.Clean(ctx, ref)
	}
	if err != nil {
		return fmt.Errorf("look for the driver's process: %w", err)
	}
	i.proc = proc
	i.rec.Launch.Process = proc.Ref()
	return nil
}

// startProcess starts the command in the place of a process that has ended.
func (i *instance) startProcess(ctx context.Context) error {
	run, err := i.program()
	if err != nil {
		return err
	}
	socket, err := i.freshSocket()
	if err != nil {
		return err
	}
	i.rec.Ran = run.sha
	i.proc, err = i.begin(ctx, run, socket, &i.rec.Launch)
	return err
}

// begin starts a process of the command, which listens on a socket. It is recorded in at before it starts and after.
func (i *instance) begin(ctx context.Context, run runnable, socket string, at **launch) (*process.Process, error) {
	s := i.spec.on(socket)
	env, err := environment(s, i.r.cfg.ReadSecret)
	if err != nil {
		return nil, err
	}
	spec := process.Spec{
		Token: process.NewToken(), Path: run.path, Name: s.Command[0], Args: s.Command[1:],
		Env:     env,
		Dir:     "/",
		User:    s.User,
		LogPath: i.logPath(), DieWithHost: i.r.cfg.DieWithHost,
		NoNewPrivs: true, Limits: s.Limits,
	}
	*at = &launch{Runs: runs(i.spec), Process: spec.Intent(), SHA256: run.sha}
	if socket != i.spec.socket() {
		(*at).Socket = socket
	}
	if err := i.save(); err != nil {
		*at = nil
		return nil, err
	}
	i.printed = process.LogSize(i.logPath())
	proc, err := process.Start(spec)
	if err != nil {
		*at = nil
		return nil, program.ExplainExec(err, spec.Path)
	}
	(*at).Process = proc.Ref()
	if err := i.save(); err != nil {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), i.r.timing.stopGrace)
		defer cancel()
		if stopErr := proc.Stop(ctx); stopErr != nil {
			return nil, errors.Join(err, stopErr) // the record finds it again
		}
		*at = nil
		return nil, err
	}
	return proc, nil
}

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

// clearSocket makes the socket's folder and removes a socket that an ended process left there, since
// many drivers fail on it. If a process still answers on the socket, a second driver must not be
// started there.
func (i *instance) clearSocket(socket string) error {
	if err := os.MkdirAll(filepath.Dir(socket), 0o700); err != nil {
		return fmt.Errorf("make the socket's folder: %w", err)
	}
	info, err := os.Lstat(socket)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look at the socket: %w", err)
	}
	link := socket == i.spec.socket() && i.leadsTo() != ""
	if info.Mode().Type() != fs.ModeSocket && !link {
		return fmt.Errorf("%s is not a socket: remove it", socket)
	}
	conn, err := net.DialTimeout("unix", socket, time.Second)
	if err == nil {
		_ = conn.Close()
		return fmt.Errorf("another process already answers on %s: stop it, or declare the driver without a command", socket)
	}
	if !errors.Is(err, syscall.ECONNREFUSED) && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("check whether a process answers on the socket: %w", err)
	}
	if link && i.spec.Overlap {
		return nil // it is led to another socket
	}
	if err := os.Remove(socket); err != nil {
		return fmt.Errorf("remove the socket that an ended process left: %w", err)
	}
	return nil
}

// begun records a new or found process, and resets what was known of the one before it.
func (i *instance) begun(kind, message string) {
	i.update(func(d *Driver) {
		if kind == "started" && i.startedOnce {
			d.Restarts++
		}
		i.startedOnce = true
		i.answered, i.wasHealthy, i.starting = false, false, kind == "started"
		i.programs.last = i.rec.Launch.SHA256
		d.Program, d.Swaps = i.rec.Launch.SHA256, i.rec.Swaps
		d.PID, d.Started = i.proc.PID(), i.proc.Ref().StartTime
		i.state = "waiting for the driver's first answer"
	})
	i.event(kind, message, map[string]string{"pid": strconv.Itoa(i.proc.PID())})
}

// stopProcess stops the driver's process and its process group, if there is one, and records that
// there is none. With keepMounts, the children of a driver in use that serve mounts stay; else what
// earlier processes have left is stopped too. It has its own deadline when ctx has ended. On an error
// the record stays, so that the process can still be found.
func (i *instance) stopProcess(ctx context.Context, why string, keepMounts bool) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), i.r.timing.stopGrace)
	defer cancel()
	i.clearBeside(ctx)
	if err := i.find(ctx); err != nil {
		return err
	}
	keepMounts = keepMounts && i.inUse()
	if !keepMounts {
		if err := i.endLeft(ctx); err != nil {
			return fmt.Errorf("stop what is left of driver %q: %w", i.spec.ID, err)
		}
	}
	if i.proc == nil {
		return nil
	}
	pid, ref := i.proc.PID(), i.proc.Ref()
	stop := func(ctx context.Context) ([]int, error) { return nil, i.proc.Stop(ctx) }
	if keepMounts {
		stop = i.proc.StopKeepingMounts
	}
	kept, err := stop(ctx)
	if err != nil {
		i.proc = nil // Stop has released it; the record finds it again
		return fmt.Errorf("stop driver %q: %w", i.spec.key(), err)
	}
	i.proc, i.rec.Launch = nil, nil
	if len(kept) > 0 {
		i.keepLeft(ref)
	}
	i.update(func(d *Driver) {
		d.PID, d.Healthy = 0, false
		i.state = "stopped: " + why
	})
	i.event("stopped", fmt.Sprintf("process %d was stopped: %s", pid, why), map[string]string{"pid": strconv.Itoa(pid)})
	return i.save()
}

func (i *instance) save() error { return i.rec.save(i.r.cfg.DataDir) }

func (i *instance) logPath() string { return logPath(i.r.cfg.DataDir, i.spec.key()) }
