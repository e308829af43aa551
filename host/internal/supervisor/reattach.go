package supervisor

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	goplugin "github.com/hashicorp/go-plugin"
	"github.com/hashicorp/go-plugin/runner"

	"github.com/pannier/pannier/host/internal/process"
)

// reattach finds the process that an earlier host left and brings it up again,
// if it is what we would start now. Otherwise, and when it does not answer, it is
// stopped, and gen is nil. An error is returned if it cannot be stopped, or if
// the host closes meanwhile.
func (i *instance) reattach(ctx context.Context) (gen *generation, err error) {
	if i.rec.Process == nil {
		return nil, nil
	}
	gen, err = i.tryReattach(ctx)
	if err == nil {
		return gen, nil
	}
	if ctx.Err() != nil {
		return nil, ctx.Err() // called off: the process stays for the next host
	}
	if !errors.Is(err, process.ErrGone) {
		i.log.Warn("the plugin of the previous host is replaced", "pid", i.rec.Process.PID, "reason", err)
	}
	return nil, i.clear(ctx, i.sup.cfg.StopTimeout)
}

func (i *instance) tryReattach(ctx context.Context) (gen *generation, err error) {
	ctx, cancel := context.WithTimeout(ctx, i.sup.cfg.StartTimeout)
	defer cancel()
	proc, err := process.Find(ctx, *i.rec.Process)
	if err != nil {
		return nil, err
	}
	run := newRunner()
	run.proc, run.runDir = proc, i.rec.RunDir
	defer func() {
		if gen == nil {
			run.detach()
		}
	}()
	switch {
	case i.rec.Address == "":
		return nil, errors.New("it had not come up")
	case i.rec.Launch != i.launchDigest():
		return nil, errors.New("its arguments, environment or user changed")
	}
	if err := i.sameBinary(); err != nil {
		return nil, err
	}
	cfg := i.clientConfig(i.rec.Process.Token)
	cfg.Plugins = cfg.VersionedPlugins[i.rec.Wire]
	cfg.Reattach = &goplugin.ReattachConfig{
		Protocol:        goplugin.ProtocolGRPC,
		ProtocolVersion: i.rec.Wire,
		Addr:            &net.UnixAddr{Net: "unix", Name: i.rec.Address},
		ReattachFunc:    func() (runner.AttachedRunner, error) { return run, nil },
	}
	client := goplugin.NewClient(cfg)
	aborted := context.AfterFunc(ctx, run.abort)
	gen, err = i.connect(ctx, client, run)
	if !aborted() {
		if gen != nil {
			gen.health.close()
		}
		gen, err = nil, i.late(ctx, err)
	}
	if err != nil {
		run.detach() // or Kill waits for the process
		client.Kill()
		return nil, err
	}
	return gen, nil
}

// sameBinary tells whether the running process is of the binary that a start
// would use now.
func (i *instance) sameBinary() error {
	want, err := i.spec.checksum()
	if err != nil {
		return err
	}
	if want == "" {
		if want, err = hashFile(i.file); err != nil {
			return nil //nolint:nilerr // the file is gone or unreadable: better what runs than nothing
		}
	}
	if want != i.rec.SHA256 {
		return errors.New("its executable changed")
	}
	return nil
}

// clear makes sure that nothing of the recorded process is left, and forgets it.
// No start may be tried before it has succeeded. It does not end with ctx.
func (i *instance) clear(ctx context.Context, grace time.Duration) error {
	if i.rec.Process == nil {
		return removeRunDir(i.rec.RunDir)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace)
	defer cancel()
	proc, err := process.Find(ctx, *i.rec.Process)
	switch {
	case err == nil:
		err = proc.Stop(ctx)
	case errors.Is(err, process.ErrGone):
		err = process.Clean(ctx, *i.rec.Process)
	}
	if err != nil {
		return fmt.Errorf("end the process of plugin %q: %w", i.name, err)
	}
	if err := removeRunDir(i.rec.RunDir); err != nil {
		return fmt.Errorf("remove the socket of plugin %q: %w", i.name, err)
	}
	i.rec.Process, i.rec.RunDir, i.rec.Address = nil, "", ""
	return i.rec.save(i.sup.dir)
}
