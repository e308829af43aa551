package supervisor

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"time"

	goplugin "github.com/hashicorp/go-plugin"
	"github.com/hashicorp/go-plugin/runner"

	"github.com/pannier/pannier/host/internal/system/process"
)

// reattach finds the process that served under an earlier host and brings it up again, with the configuration that it
// has: if that is another one now, a new process takes over (replace). If it cannot, gen is nil,
// and clearAll ends the earlier host's processes. It returns an error only if the host closes meanwhile.
func (i *instance) reattach(ctx context.Context) (gen *generation, err error) {
	run := i.rec.serving()
	if run == nil || run.Process == nil {
		return nil, nil
	}
	gen, err = i.tryReattach(ctx, run)
	if ctx.Err() != nil {
		return gen, ctx.Err() // cancelled: the process stays for the next host
	}
	if err != nil && !errors.Is(err, process.ErrGone) {
		i.log.Warn("the plugin of the previous host is replaced", "pid", run.Process.PID, "reason", err)
	}
	return gen, nil
}

// clearOthers ends the other processes of an earlier host: one that was to take over, or one that had been
// replaced.
func (i *instance) clearOthers(ctx context.Context, gen *generation) {
	for _, run := range slices.Clone(i.rec.Runs) {
		if run == gen.record {
			continue
		}
		i.endWithEvents(ctx, run)
		if err := i.clear(ctx, run, i.sup.cfg.StopTimeout); err != nil {
			i.log.Warn("an old process of the plugin could not be ended", "generation", run.Number, "error", err)
		}
		if run.Canary != 0 {
			i.endedWithHost(gen, run)
		}
	}
}

func (i *instance) tryReattach(ctx context.Context, rec *runRecord) (gen *generation, err error) {
	ctx, cancel := context.WithTimeout(ctx, i.sup.cfg.StartTimeout)
	defer cancel()
	proc, err := process.Find(ctx, *rec.Process)
	if err != nil {
		return nil, err
	}
	ctx, giveUp := context.WithCancelCause(ctx)
	defer giveUp(nil)
	if s, ok := i.rec.Settings[rec.SHA256]; ok {
		i.spec = i.wanted.with(s)
	}
	run := newRunner()
	run.proc, run.runDir, run.record, run.meter = proc, rec.RunDir, rec, i.newMeter(giveUp)
	run.measure()
	defer func() {
		if gen == nil {
			run.detach()
		}
	}()
	if rec.Address == "" {
		return nil, errors.New("it had not come up")
	}
	if err := i.checkAllowed(rec.SHA256); err != nil {
		return nil, err
	}
	cfg := i.clientConfig(rec.Process.Token, rec.Number)
	cfg.Plugins = cfg.VersionedPlugins[rec.Wire]
	cfg.Reattach = &goplugin.ReattachConfig{
		Protocol:        goplugin.ProtocolGRPC,
		ProtocolVersion: rec.Wire,
		Addr:            &net.UnixAddr{Net: "unix", Name: rec.Address},
		ReattachFunc:    func() (runner.AttachedRunner, error) { return run, nil },
	}
	client := goplugin.NewClient(cfg)
	aborted := context.AfterFunc(ctx, run.abort)
	gen, err = i.connect(ctx, client, run)
	if err == nil {
		err = i.rec.save(i.sup.dir)
		if err == nil && i.sup.cfg.Services != nil {
			err = i.sup.cfg.Services.Adopt(ctx, i.name, gen.conn)
		}
		if err != nil {
			gen.health.close()
			gen = nil
		}
	}
	if !aborted() {
		if gen != nil {
			gen.health.close()
		}
		gen, err = nil, i.late(ctx, err)
	}
	if err != nil {
		run.detach() // otherwise Kill waits for the process
		client.Kill()
		return nil, err
	}
	return gen, nil
}

// checkAllowed refuses a copy that the configuration does not allow any more. A copy that is only outdated keeps
// serving until the newer one is up.
func (i *instance) checkAllowed(sha string) error {
	want, err := i.spec.checksum()
	if err == nil && want != "" && want != sha {
		err = fmt.Errorf("%w: it has sha256:%s, the configuration wants sha256:%s", errChecksum, sha, want)
	}
	return err
}

// notUpStop is how long a process that had not come up may take to end: it does no work yet.
const notUpStop = 100 * time.Millisecond

// clearAll makes sure that no recorded process, nor anything it started, is left. A start may be tried only after
// it has succeeded. It does not end with ctx.
func (i *instance) clearAll(ctx context.Context, grace time.Duration) error {
	var errs []error
	for _, run := range slices.Clone(i.rec.Runs) {
		errs = append(errs, i.clear(ctx, run, grace))
	}
	return errors.Join(errs...)
}

// clear makes sure that a recorded process and all that it started are gone, and removes it from the record. It
// does not end with ctx.
func (i *instance) clear(ctx context.Context, run *runRecord, grace time.Duration) error {
	if run.Process != nil {
		if run.Address == "" {
			grace = min(grace, notUpStop)
		}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace)
		defer cancel()
		proc, err := process.Find(ctx, *run.Process)
		switch {
		case err == nil:
			err = proc.Stop(ctx)
		case errors.Is(err, process.ErrGone):
			err = process.Clean(ctx, *run.Process)
		}
		if err != nil {
			return fmt.Errorf("end the process of plugin %q: %w", i.name, err)
		}
		if err := removeCursor(i.sup.dir, run.Process.Token); err != nil {
			return fmt.Errorf("forget the events of plugin %q: %w", i.name, err)
		}
	}
	if err := removeRunDir(run.RunDir); err != nil {
		return fmt.Errorf("remove the socket of plugin %q: %w", i.name, err)
	}
	i.rec.forget(run)
	return i.rec.save(i.sup.dir)
}
