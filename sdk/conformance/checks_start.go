package conformance

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/hashicorp/go-version"

	pluginv1 "github.com/pannier/pannier/sdk/proto/pannier/plugin/v1"
	"github.com/pannier/pannier/sdk/wire"
)

// configured are the checks that nearly every other check depends on.
var configured = []string{"start.handshake", "info.kind", "config.valid"}

var startChecks = []*Check{
	{
		ID:   "start.handshake",
		Says: "Started by a host, it prints the handshake and answers over TLS on a unix socket in the directory that it was given, within 10 s.",
		Fix:  "Call sdk.Main first in main and print nothing before it. In another language: print the line `1|VERSION|unix|PATH|grpc|` and serve with the bundle that PANNIER_PLUGIN_TLS names.",
		run: func(ctx context.Context, r *run, c *checking) error {
			p, err := r.start(c)
			if err != nil {
				return err
			}
			_, err = p.info(ctx)
			return err
		},
	},
	{
		ID:   "info.kind",
		Says: "It reports its name and a kind that this host knows, and serves the kind's service.",
		Fix:  "Give sdk.Info a name, and make the plugin with the kind's own function, such as storage.Plugin(impl).",
		after: []string{
			"start.handshake",
		},
		run: checkKind,
	},
	{
		ID:    "info.version",
		Says:  "Its version is a semantic version without a leading v.",
		Fix:   "Set sdk.Info's Version, for example to 1.2.3. A host compares it with the version constraint of its plugin block.",
		after: []string{"start.handshake"},
		run: func(ctx context.Context, r *run, c *checking) error {
			p, err := r.start(c)
			if err != nil {
				return err
			}
			info, err := p.info(ctx)
			if err != nil {
				return err
			}
			if _, err := version.NewSemver(info.GetVersion()); err != nil || strings.HasPrefix(info.GetVersion(), "v") {
				return fmt.Errorf("its version is %q", info.GetVersion())
			}
			return nil
		},
	},
	{
		ID:    "info.same",
		Says:  "It reports the same name, version and kind again after it is configured.",
		Fix:   "Use constants: the answer must not depend on the configuration or change while the process runs.",
		after: configured,
		run: func(ctx context.Context, r *run, c *checking) error {
			p, err := r.start(c)
			if err != nil {
				return err
			}
			first, err := p.info(ctx)
			if err != nil {
				return err
			}
			if err := p.configure(ctx, r.cfg.Config); err != nil {
				return err
			}
			again, err := p.info(ctx)
			if err == nil && first.String() != again.String() {
				err = fmt.Errorf("first it was %s, then %s", first, again)
			}
			return err
		},
	},
	{
		ID:   "start.by-hand",
		Says: "Started by hand, without a host, it prints an explanation and exits with an error within 10 s.",
		Fix:  "Call sdk.Main first in main. In another language: check the environment for the cookie PANNIER_PLUGIN, and exit with 1 if it is missing.",
		run:  checkByHand,
	},
	{
		ID:    "start.tls",
		Says:  "It answers only the host that started it: no client without a certificate, and none with another host's certificate.",
		Fix:   "Serve with the unchanged configuration of wire.ServerTLS, which requires a client certificate and verifies it with the host's certificate in the bundle.",
		after: []string{"start.handshake"},
		run:   checkTLS,
	},
	{
		ID:    "start.reattach",
		Says:  "A restarted host reconnects to the process and gets the same answers.",
		Fix:   "Do not end when a connection closes, and do not tie configuration or state to a connection.",
		after: configured,
		run: up(func(ctx context.Context, r *run, c *checking, p *process) error {
			before := r.kind.asked(ctx, p.conn, r.asked())
			if err := p.conn.Close(); err != nil {
				return err
			}
			conn, err := p.again(r.authority.ClientTLS(p.server))
			if err != nil {
				return err
			}
			defer conn.Close()
			r.host.attach(conn)
			return same("before", before, "to the restarted host", r.kind.asked(ctx, conn, r.asked()))
		}),
	},
}

func (p *process) info(ctx context.Context) (*pluginv1.InfoResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	info, err := p.api.Info(ctx, &pluginv1.InfoRequest{})
	if err != nil {
		return nil, fmt.Errorf("info: %w%s", err, p.lastWords())
	}
	return info, nil
}

func checkKind(ctx context.Context, r *run, c *checking) error {
	p, err := r.start(c)
	if err != nil {
		return err
	}
	info, err := p.info(ctx)
	if err != nil {
		return err
	}
	r.report.Name, r.report.Version, r.report.Kind = info.GetName(), info.GetVersion(), info.GetKind()
	if info.GetName() == "" {
		return errors.New("it has no name")
	}
	k, ok := kinds[info.GetKind()]
	switch {
	case !ok:
		return fmt.Errorf("its kind is %q, which is not one of %s", info.GetKind(), kindNames())
	case r.cfg.Kind != "" && r.cfg.Kind != info.GetKind():
		return fmt.Errorf("its kind is %q, not %q", info.GetKind(), r.cfg.Kind)
	}
	if err := k.served(ctx, p.conn); err != nil {
		return err
	}
	r.kind = k
	return nil
}

func checkByHand(ctx context.Context, r *run, _ *checking) error {
	ctx, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	var said bytes.Buffer
	cmd := exec.CommandContext(ctx, r.cfg.Binary, r.cfg.Args...)
	cmd.Env = environment()
	cmd.Stdout, cmd.Stderr = &said, &said
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second
	err := cmd.Run()
	var exit *exec.ExitError
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("it still ran after %v", startTime)
	case err == nil:
		return errors.New("it exited with 0")
	case !errors.As(err, &exit):
		return err
	case strings.TrimSpace(said.String()) == "":
		return errors.New("it printed nothing")
	}
	return nil
}

func checkTLS(ctx context.Context, r *run, c *checking) error {
	p, err := r.start(c)
	if err != nil {
		return err
	}
	other, err := wire.NewAuthority()
	if err != nil {
		return err
	}
	host := r.authority.ClientTLS(p.server)
	nobody, stranger := host.Clone(), other.ClientTLS(p.server)
	nobody.Certificates, stranger.RootCAs = nil, host.RootCAs
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	conn, err := p.again(nobody)
	if err != nil {
		return err
	}
	defer conn.Close()
	if _, err := pluginv1.NewPluginServiceClient(conn).Info(ctx, &pluginv1.InfoRequest{}); err == nil {
		return errors.New("it answered a client without a certificate")
	}
	conn, err = p.again(stranger)
	if err != nil {
		return err
	}
	defer conn.Close()
	if _, err := pluginv1.NewPluginServiceClient(conn).Info(ctx, &pluginv1.InfoRequest{}); err == nil {
		return errors.New("it answered another host")
	}
	_, err = p.info(ctx) // it still answers its own host
	return err
}
