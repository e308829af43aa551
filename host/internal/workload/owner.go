package workload

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/host/internal/journal"
	"github.com/pannier/pannier/host/internal/process"
)

// stopGrace is how long a workload's process has between SIGTERM and SIGKILL;
// killGrace how long what is killed may take to be gone.
const (
	stopGrace = 10 * time.Second
	killGrace = 5 * time.Second
)

// observe opens the processes whose end releases the workload. One that is gone
// already asks for the stop at once.
func (r *run) observe() {
	for what, ref := range map[string]*process.Ref{"owner": r.rec.Owner, "process": r.rec.Process} {
		if ref == nil {
			continue
		}
		p, err := process.Find(context.Background(), *ref)
		if err != nil {
			r.askStop(fmt.Sprintf("its %s (pid %d) is gone", what, ref.PID))
			continue
		}
		if what == "owner" {
			r.owner = p
		} else {
			r.process = p
		}
	}
}

// awaitEnd returns why the workload has to go: it was asked to, or its owner or
// its process has ended.
func (r *run) awaitEnd(ctx context.Context) error {
	for {
		r.instance.mu.Lock()
		owner, own, changed := r.owner, r.process, r.changed
		r.instance.mu.Unlock()
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-r.stop:
			r.instance.mu.Lock()
			defer r.instance.mu.Unlock()
			return errors.New(r.rec.Message)
		case <-ended(owner):
			return fmt.Errorf("its owner (pid %d) ended", owner.PID())
		case <-ended(own):
			return fmt.Errorf("its process (pid %d) ended", own.PID())
		case <-changed:
		}
	}
}

func ended(p *process.Process) <-chan struct{} {
	if p == nil {
		return nil
	}
	return p.Done()
}

// ran notes which process is the workload, and its private mount namespace.
func (r *run) ran(p *process.Process) error {
	inode, err := process.MountNamespace(p.PID())
	if err != nil {
		return err
	}
	host, err := process.MountNamespace(os.Getpid())
	if err != nil {
		return err
	}
	if inode == host {
		inode = 0 // not private: it must never be emptied
	}
	return r.update(r.journal, journal.Process, func(rec *record) {
		ref := p.Ref()
		rec.Process, rec.MountNS, r.process = &ref, inode, p
	})
}

// endProcesses ends what still uses the volumes: the workload's process, asked
// first, then whatever else lives in its private mount namespace, where the
// volumes stay mounted however often they are unmounted on the host.
func (r *run) endProcesses(ctx context.Context) error {
	r.instance.mu.Lock()
	p, ns := r.process, r.rec.MountNS
	r.instance.mu.Unlock()
	if p != nil {
		err := endProcess(ctx, p, unix.SIGTERM, stopGrace)
		if errors.Is(err, context.DeadlineExceeded) {
			err = endProcess(ctx, p, unix.SIGKILL, killGrace)
		}
		if err != nil {
			return fmt.Errorf("end process %d of %s: %w", p.PID(), r.instance, err)
		}
	}
	if ns == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, killGrace)
	defer cancel()
	return r.emptyNamespace(ctx, ns)
}

// endProcess sends a signal and waits until the process is gone, DeadlineExceeded
// if it is not by then.
func endProcess(ctx context.Context, p *process.Process, sig unix.Signal, grace time.Duration) error {
	if err := p.Signal(sig); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, grace)
	defer cancel()
	select {
	case <-p.Done():
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// emptyNamespace kills every process in a mount namespace and waits until they
// are gone: a child that was forked meanwhile is found by the next look.
func (r *run) emptyNamespace(ctx context.Context, ns uint64) error {
	for {
		pids := process.InMountNamespace(ns)
		if len(pids) == 0 {
			return nil
		}
		for _, pid := range pids {
			p, err := process.Observe(pid)
			if errors.Is(err, process.ErrGone) {
				continue
			}
			if err != nil {
				return err
			}
			// It may have left the namespace, or its pid may be another process's by now.
			if now, err := process.MountNamespace(pid); err == nil && now == ns {
				err = endProcess(ctx, p, unix.SIGKILL, killGrace)
				if err != nil {
					p.Release()
					return fmt.Errorf("kill process %d of %s, which may hang in the kernel: %w", pid, r.instance, err)
				}
			}
			p.Release()
		}
	}
}
