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

	"github.com/pannier/pannier/host/internal/system/process"
	"github.com/pannier/pannier/host/internal/system/program"
	"github.com/pannier/pannier/sdk/storage"
)

// A driver of which two processes may run side by side (Spec.Overlap) is replaced without a break. Each process listens
// on a socket of its own, and the endpoint is a link to that of the one that serves. A new program is started next to
// it, and is asked what the old one was asked. If it answers and has lost nothing, the link is led to it, and the old
// process is ended after its last call. If not, the new process is ended, and nobody has noticed.
//
// No process may listen on the endpoint itself: most remove their socket when they end, and that would be the next
// one's then.

// ownSockets end the names of the sockets. One is in use by the process that serves, or was last.
var ownSockets = []string{".1", ".2"}

// beside is a process next to the one that serves: one that is tried, or one that was replaced and has calls left.
type beside struct {
	launch *launch
	proc   *process.Process
	since  time.Time
	tried  bool
	cancel context.CancelFunc
	ended  chan verdict // gets one value
}

// verdict is what became of a process next to the one that serves. One that was tried and is good runs; any other
// has ended, or err says why it cannot be ended.
type verdict struct {
	seen  storage.Fingerprint // of a good one
	why   string              // a tried one is not good
	blame bool                // that is because of its program
	left  bool                // it serves mounts in use, and is left alone
	err   error
}

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

// leadsTo returns the socket to which the endpoint leads; empty: it is no link of ours.
func (i *instance) leadsTo() string {
	endpoint := i.spec.socket()
	target, err := os.Readlink(endpoint)
	if err != nil {
		return ""
	}
	for _, end := range ownSockets {
		if target == filepath.Base(endpoint)+end {
			return endpoint + end
		}
	}
	return ""
}

// lead makes the endpoint lead to a socket, which may not be there yet.
func (i *instance) lead(socket string) error {
	endpoint := i.spec.socket()
	next := endpoint + ".next"
	if err := os.Remove(next); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("lead the endpoint to another socket: %w", err)
	}
	if err := os.Symlink(filepath.Base(socket), next); err != nil { // relative: it may be seen under another path
		return fmt.Errorf("lead the endpoint to another socket: %w", err)
	}
	if err := os.Rename(next, endpoint); err != nil {
		return fmt.Errorf("lead the endpoint to another socket: %w", err)
	}
	return nil
}

// leadBack makes the endpoint lead to the process that serves, if it listens where it was told to.
func (i *instance) leadBack() {
	own := i.rec.Launch.Socket
	if own == "" || i.leadsTo() == own || gone(own) {
		return
	}
	if err := i.lead(own); err != nil {
		i.log.Error("the endpoint does not lead to the driver's process", "error", err)
	}
}

// freshSocket returns where a process that follows an ended one has to listen.
func (i *instance) freshSocket() (string, error) {
	endpoint, was := i.spec.socket(), i.leadsTo()
	if err := i.clearSocket(endpoint); err != nil || !i.spec.Overlap {
		return endpoint, err
	}
	socket, err := i.freeSocket(was)
	if err != nil {
		return "", err
	}
	return socket, i.lead(socket)
}

// freeSocket returns a socket on which nobody listens: that one, if it is free.
func (i *instance) freeSocket(first string) (string, error) {
	endpoint := i.spec.socket()
	var errs []error
	for _, socket := range []string{first, endpoint + ownSockets[0], endpoint + ownSockets[1]} {
		if socket == "" {
			continue
		}
		err := i.clearSocket(socket)
		if err == nil {
			return socket, nil
		}
		errs = append(errs, err)
	}
	return "", errors.Join(errs...)
}

// mayOverlap says whether a process may be brought up next to the one that serves. That has to listen where it was
// told to: one that takes its endpoint from elsewhere would be in the way of the new one.
func (i *instance) mayOverlap() bool {
	own := i.rec.Launch.Socket
	return i.spec.Overlap && own != "" && i.leadsTo() == own && !gone(own)
}

// try starts the program that is ready next to the one that serves, and has it examined.
func (i *instance) try(ctx context.Context) {
	run, since := *i.programs.ready, time.Now().UTC()
	i.programs.ready = nil
	socket, err := i.freeSocket("")
	if err != nil {
		i.programs.seen = program.Stamp{} // try again
		i.programIs(fmt.Sprintf("its program has changed, and waits: %v", err))
		return
	}
	proc, err := i.begin(ctx, run, socket, &i.rec.Beside)
	if err != nil {
		i.refuse(run.sha, since, err.Error())
		return
	}
	i.event("trying", fmt.Sprintf("its program has changed: process %d is tried next to process %d, which serves",
		proc.PID(), i.proc.PID()), nil)
	was := i.snapshot()
	i.goOn(ctx, &beside{launch: i.rec.Beside, proc: proc, since: since, tried: true}, func(ctx context.Context) verdict {
		v := i.examine(ctx, proc, socket, was)
		if v.why != "" {
			v.err = i.stopBeside(ctx, proc)
		}
		return v
	})
}

// goOn follows a process next to the one that serves.
func (i *instance) goOn(ctx context.Context, b *beside, fate func(ctx context.Context) verdict) {
	ctx, b.cancel = context.WithCancel(ctx)
	b.ended = make(chan verdict, 1)
	i.beside = b
	i.r.running.Go(func() { b.ended <- fate(ctx) })
}

var (
	errLate  = errors.New("it is late")
	errEnded = errors.New("its process ended")
)

// examine waits, up to the health timeout, until a process is healthy, and compares it with the one that serves.
func (i *instance) examine(ctx context.Context, proc *process.Process, socket string, was Driver) verdict {
	ctx, cancel := context.WithCancelCause(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel(nil)
	wg.Go(func() {
		late := time.NewTimer(i.spec.HealthTimeout)
		defer late.Stop()
		select {
		case <-proc.Done():
			cancel(errEnded)
		case <-late.C:
			cancel(errLate)
		case <-ctx.Done():
		}
	})
	seen, problem := was, ""
	for gone(socket) && sleep(ctx, i.r.timing.retryMin) {
		problem = "it does not listen on " + socket
	}
	var away error
	for ctx.Err() == nil {
		away = i.ask(ctx, socket, func(fp storage.Fingerprint) error {
			if seen.conclude(fp); seen.Healthy {
				return errReported
			}
			problem = seen.Message
			return nil
		})
		if errors.Is(away, errReported) {
			lost := lostBy(was.Fingerprint, seen.Fingerprint)
			if len(lost) > 0 {
				return verdict{why: "it is not what it was: " + strings.Join(lost, ", "), blame: true}
			}
			return verdict{seen: seen.Fingerprint}
		}
		sleep(ctx, i.r.timing.retryMin)
	}
	switch cause := context.Cause(ctx); {
	case errors.Is(cause, errEnded):
		return verdict{why: fmt.Sprintf("its process %d ended: %s", proc.PID(), proc.Exit()), blame: true}
	case !errors.Is(cause, errLate):
		return verdict{why: "it was given up"}
	case problem == "":
		return verdict{why: fmt.Sprintf("it could not be asked: %v", away)}
	default:
		return verdict{why: fmt.Sprintf("it was not healthy within %s: %s", i.spec.HealthTimeout, problem), blame: true}
	}
}

// ask has a storage plugin report on the process that listens on a socket.
func (i *instance) ask(ctx context.Context, socket string, report func(storage.Fingerprint) error) error {
	client, release, err := i.r.cfg.Storage(ctx, i.spec.Plugin)
	if err != nil {
		return err
	}
	defer release()
	opts := storage.FingerprintOptions{Interval: i.r.timing.fingerprintEvery, ProbeTimeout: i.spec.HealthTimeout}
	return client.Fingerprint(ctx, storage.Driver{ID: i.spec.ID, Endpoint: "unix://" + socket}, opts, report)
}

// lostBy lists what a driver has no more with another program. It may get another limit, and more topology.
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

// giveUpOutdated ends the trial of a program whose file has changed again.
func (i *instance) giveUpOutdated() {
	if i.beside == nil || !i.beside.tried {
		return
	}
	if now, err := stampOf(i.spec.Command[0]); err == nil && now != i.programs.seen {
		i.beside.cancel()
	}
}

// judge acts on what became of the process next to the one that serves, and returns whether that has taken over.
func (i *instance) judge(ctx context.Context, v verdict) (tookOver bool) {
	b := i.beside
	b.cancel()
	i.beside = nil
	if b.tried && v.why == "" {
		if v.why = i.takeOver(ctx, b, v.seen); v.why == "" {
			return true
		}
		v.err = i.stopBeside(ctx, b.proc)
	}
	if v.err != nil {
		i.log.Error("a process next to the one that serves could not be ended", "pid", b.launch.Process.PID, "error", v.err)
	} else {
		i.rec.Beside = nil
	}
	switch {
	case v.left:
		i.keepLeft(b.launch.Process)
	case !b.tried && v.err == nil:
		i.event("stopped", fmt.Sprintf("process %d, which was replaced, has ended", b.launch.Process.PID), nil)
	case v.blame:
		i.refuse(b.launch.SHA256, b.since, v.why)
	case b.tried:
		i.programs.seen = program.Stamp{} // try again
		if ctx.Err() == nil {
			i.programIs("its program has changed, and waits: " + v.why)
		}
	}
	if err := i.save(); err != nil {
		i.log.Error("the end of a process next to the one that serves could not be recorded", "error", err)
	}
	return false
}

// refuse goes on with the program that serves.
func (i *instance) refuse(sha string, since time.Time, why string) {
	i.leadBack() // the new process may have been in the way
	if said := process.LastWords(i.logPath(), i.printed); said != "" {
		why += fmt.Sprintf("; last was printed %q", said)
	}
	serving := i.rec.Launch.SHA256
	i.rec.Refused = map[string]string{sha: why}
	text := fmt.Sprintf("sha256:%.12s is refused, and sha256:%.12s serves on: %s", sha, serving, why)
	i.update(func(d *Driver) { d.ProgramProblem = text })
	i.swapped(Swap{At: since, From: serving, To: sha, Overlap: true, Refused: true, Why: why, Took: time.Since(since)})
	i.event("refused", text, nil)
}

// takeOver makes the process that was tried the one that serves, or says why not. The record comes first: the next host
// leads the endpoint to the process that it names, and ends the other one.
func (i *instance) takeOver(ctx context.Context, b *beside, seen storage.Fingerprint) (why string) {
	if i.inUse() && process.ServesMounts(i.proc.PID()) {
		return "the process that serves has file systems in use"
	}
	was, ran := i.rec.Launch, i.rec.Ran
	back := func(err error) string {
		i.rec.Launch, i.rec.Beside, i.rec.Ran = was, b.launch, ran
		return err.Error()
	}
	i.rec.Launch, i.rec.Beside, i.rec.Ran = b.launch, was, b.launch.SHA256
	if err := i.save(); err != nil {
		return back(err)
	}
	if err := i.lead(b.launch.Socket); err != nil {
		return back(err)
	}
	old := i.proc
	i.proc, i.fresh = b.proc, true
	i.swapped(Swap{At: b.since, From: was.SHA256, To: b.launch.SHA256, Overlap: true, Took: time.Since(b.since)})
	i.programIs("")
	i.event("swapped", fmt.Sprintf("its program has changed from sha256:%.12s to sha256:%.12s: process %d serves in the "+
		"place of process %d, which ends after its last call", was.SHA256, b.launch.SHA256, i.proc.PID(), old.PID()), nil)
	i.begun("started", fmt.Sprintf("process %d has taken over", i.proc.PID()))
	i.report(seen)
	replaced := &beside{launch: was, proc: old}
	i.goOn(ctx, replaced, func(ctx context.Context) verdict { return i.drain(ctx, replaced) })
	return ""
}

// drain ends a process that was replaced, after its last call.
func (i *instance) drain(ctx context.Context, b *beside) verdict {
	late := time.NewTimer(i.spec.longestCall())
	defer late.Stop()
	look := time.NewTicker(drainEvery)
	defer look.Stop()
	for busy := true; busy && connected(b.launch.Socket); {
		select {
		case <-look.C:
		case <-b.proc.Done():
			busy = false
		case <-late.C:
			busy = false
		case <-ctx.Done():
			busy = false
		}
	}
	if !i.inUse() {
		return verdict{err: i.stopBeside(ctx, b.proc)}
	}
	if process.ServesMounts(b.proc.PID()) {
		b.proc.Release()
		return verdict{left: true}
	}
	stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), i.r.timing.stopGrace)
	defer cancel()
	kept, err := b.proc.StopKeepingMounts(stop)
	return verdict{left: len(kept) > 0, err: err}
}

// drainEvery is the time between two looks at what is connected to a process that was replaced.
const drainEvery = 20 * time.Millisecond

// longestCall is how long a call to the driver may take.
func (s Spec) longestCall() time.Duration {
	return max(s.Timeout("stage"), s.Timeout("unstage"), s.Timeout("publish"), s.Timeout("unpublish"))
}

// connected says whether somebody is connected to a process's own socket, or that cannot be known. The accepted sockets
// of a process have the path that it listens on (proc(5), /proc/net/unix).
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

func (i *instance) stopBeside(ctx context.Context, proc *process.Process) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), i.r.timing.stopGrace)
	defer cancel()
	return proc.Stop(ctx)
}

// endBeside ends the process next to the one that serves.
func (i *instance) endBeside(ctx context.Context) {
	if i.beside == nil {
		return
	}
	i.beside.cancel()
	v := <-i.beside.ended
	if i.beside.tried && v.why == "" {
		v.why, v.err = "it is too late", i.stopBeside(ctx, i.beside.proc)
	}
	v.blame = false
	i.judge(ctx, v)
}

// clearBeside ends the process that an earlier host had next to the one that served.
func (i *instance) clearBeside(ctx context.Context) {
	if i.rec.Beside == nil || i.beside != nil {
		return
	}
	ref := i.rec.Beside.Process
	if i.inUse() && slices.ContainsFunc(process.Left(ref), process.ServesMounts) {
		i.keepLeft(ref)
	} else {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), i.r.timing.stopGrace)
		defer cancel()
		if err := process.Clean(ctx, ref); err != nil {
			i.log.Error("a process next to the one that serves could not be ended", "pid", ref.PID, "error", err)
			return
		}
	}
	i.rec.Beside = nil
	if err := i.save(); err != nil {
		i.log.Error("the end of a process next to the one that serves could not be recorded", "error", err)
	}
}
