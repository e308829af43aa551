package cli

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/host/internal/config"
	"github.com/pannier/pannier/host/internal/doctor"
	"github.com/pannier/pannier/host/internal/pluginhost/signing"
	"github.com/pannier/pannier/sdk/service"
)

// setupPlugin is the plugin that knows Consul's ACLs, and setupApply its mode in which it changes them.
const (
	setupPlugin = "sids"
	setupApply  = "apply"
)

func (a *App) setupCommand() *cobra.Command {
	return a.noun("setup", "Set up what Pannier needs elsewhere", []verb{setupVerb()})
}

// setupFlags are those of setup consul.
type setupFlags struct {
	paths                                                        []string
	name                                                         string
	login, minted, gateways, intentions, dryRun, checks, destroy bool
	rotateKey                                                    bool
	services                                                     []string
	jwksURL, jwksCA                                              string
}

func setupVerb() verb {
	var f setupFlags
	return verb{
		use: "consul", short: "Set up Consul's ACLs for this host",
		long: `Set up Consul's ACLs for this host, by the consul block of the agent's configuration: its
token in token_file, and where the tokens of services come from:

  -login   the auth method auth_method (default pannier), with this host's public key, and a
           binding rule for each namespace
  -minted  a token for the plugin sids, which may write ACLs

Without either it is as the configuration says, else by login. The command may be repeated: it
mends what differs, adds this host's key to an auth method that has those of others, and says of
each object what it did. What it did not make itself it neither changes nor removes. At the end it
prints what the agent's configuration lacks.

-rotate-key replaces the key with which the host's cluster signs. The next one is published and
signs as soon as every server of the cluster publishes it and Consul has it. The one before is
accepted for ten minutes more, for what it has signed. From an auth method that has the keys in
itself the next run of this command removes it. An interrupted rotation goes on by itself, or with
the next run. With several consul blocks, run it for each of them.

Consul is called with the token of CONSUL_HTTP_TOKEN or CONSUL_HTTP_TOKEN_FILE, which needs
acl = "write". Without a consul block, CONSUL_HTTP_ADDR, CONSUL_CACERT, CONSUL_CLIENT_CERT,
CONSUL_CLIENT_KEY and CONSUL_TLS_SERVER_NAME say where Consul is. Run it as root, while the agent
runs.

The exit code is 0 if all is well, and 1 if -check finds something missing or different, if Consul
cannot fetch the keys, or if a rotation of the key is stuck.`,
		example: "\n-services 'default=web,db,shop-*' -services 'dev=*' -dry-run",
		flags: func(flags *pflag.FlagSet) {
			flags.StringArrayVar(&f.paths, "config", nil,
				"`PATH` of the agent's configuration; may be given more than once (default "+config.SystemDir+", if it is there)")
			flags.StringVar(&f.name, "consul", service.DefaultConsul, "the `NAME` of the consul block")
			flags.BoolVar(&f.login, "login", false, "services get their tokens by login")
			flags.BoolVar(&f.minted, "minted", false, "services get minted tokens")
			flags.BoolVar(&f.gateways, "gateways", false, "the host's token may write what ingress and terminating gateways need")
			flags.BoolVar(&f.intentions, "intentions", false, "the host's token may say who may call a service")
			flags.StringArrayVar(&f.services, "services", nil, "which services a namespace's workloads may be by login, as "+
				"`NAMESPACE=NAME,...` with * for\nany text; may be given more than once (default: as Consul has it, or default=*)")
			flags.StringVar(&f.jwksURL, "jwks-url", "", "Consul fetches the public keys from this `URL`, instead of having them")
			flags.StringVar(&f.jwksCA, "jwks-ca", "", "a `FILE` with the CA certificates for that URL")
			flags.BoolVar(&f.rotateKey, "rotate-key", false, "replace the key that signs, with an overlap")
			flags.BoolVar(&f.dryRun, "dry-run", false, "only show what would be done")
			flags.BoolVar(&f.checks, "check", false, "only show what is missing or different")
			flags.BoolVar(&f.destroy, "destroy", false, "remove what this command has made, for all hosts of this Consul")
		},
		apart: [][]string{
			{"login", "minted"},
			{"dry-run", "check"},
			{"destroy", "check"},
			{"rotate-key", "minted"},
			{"rotate-key", "destroy"},
			{"rotate-key", "check"},
		},
		local: func(ctx context.Context, c *call) error { return runSetup(ctx, c, &f) },
	}
}

// setupInput is the input of `sids setup`.
type setupInput struct {
	Mode          string              `json:"mode"`
	Destroy       bool                `json:"destroy"`
	Login         bool                `json:"login"`
	Minted        bool                `json:"minted"`
	Token         string              `json:"token"`
	Consul        service.Consul      `json:"consul"`
	Configured    bool                `json:"configured"`
	Audience      string              `json:"audience"`
	Node          string              `json:"node"`
	NodeTokenFile string              `json:"node_token_file"`
	SidsTokenFile string              `json:"sids_token_file"`
	SidsConfig    json.RawMessage     `json:"sids_config,omitempty"`
	Gateways      bool                `json:"gateways"`
	Intentions    bool                `json:"intentions"`
	Keys          []string            `json:"keys"`
	Retired       []string            `json:"retired,omitempty"`
	NoKeys        string              `json:"no_keys"`
	JWKSURL       string              `json:"jwks_url"`
	JWKSCA        string              `json:"jwks_ca"`
	Services      map[string][]string `json:"services"`
}

// setupReport is its output.
type setupReport struct {
	Steps  []doctor.SetupStep `json:"steps"`
	Config string             `json:"config,omitempty"`
	Error  string             `json:"error,omitempty"`
}

func runSetup(ctx context.Context, c *call, f *setupFlags) error {
	f.paths = config.Installed(f.paths)
	cfg, err := config.Load(config.Source{Paths: f.paths})
	if err != nil {
		return err
	}
	in, err := f.input(cfg)
	if err != nil {
		return err
	}
	report, err := setUp(ctx, c.App, cfg, in, f.rotateKey)
	return showSetup(c.Printer, report, err)
}

// setUp completes the plugin's input and runs it. rotate begins to replace the key that signs, unless that has begun.
func setUp(ctx context.Context, a *App, cfg *config.Agent, in setupInput, rotate bool,
) (report setupReport, err error) {
	checksum := ""
	for _, p := range cfg.Plugins {
		if p.Name == setupPlugin {
			in.SidsConfig, checksum = p.Config, p.Checksum
		}
	}
	binary, err := signing.Find(cfg.PluginDir, setupPlugin, checksum, cfg.PluginSigning)
	if err != nil {
		return report, err
	}
	if in.Minted || in.Destroy {
		return runSids(ctx, a.Err, binary, in)
	}
	keys, err := newSigningKeys(a, cfg)
	if err != nil {
		return report, err
	}
	err = keys.ask(ctx, rotate && in.Mode == setupApply)
	if err == nil {
		in.Keys, in.Retired, err = keys.pems()
	}
	switch {
	case err != nil && rotate:
		return report, fmt.Errorf("rotate the signing key: %w", err)
	case err != nil:
		in.NoKeys = err.Error()
	}
	if report, err = runSids(ctx, a.Err, binary, in); err != nil || report.Error != "" {
		return report, err
	}
	if rotate && in.Mode == setupApply {
		keys.awaitSigns(ctx)
	}
	report.Steps = append(report.Steps, keys.steps(rotate && in.Mode != setupApply)...)
	return report, nil
}

// input makes the plugin's input of the flags, the configuration and the environment.
func (f *setupFlags) input(cfg *config.Agent) (setupInput, error) {
	in := setupInput{
		Mode: setupApply, Destroy: f.destroy, Login: f.login, Minted: f.minted, Gateways: f.gateways,
		Intentions: f.intentions, Node: cfg.Name, JWKSURL: f.jwksURL,
	}
	if f.dryRun {
		in.Mode = "dry-run"
	}
	if f.checks {
		in.Mode = "check"
	}
	block := config.NewConsul(f.name)
	named := func(c config.Consul) bool { return c.Name == f.name && !c.IdentityOnly }
	if i := slices.IndexFunc(cfg.Consuls, named); i >= 0 {
		block, in.Configured = cfg.Consuls[i], true
	} else {
		block.Address = cmp.Or(os.Getenv("CONSUL_HTTP_ADDR"), block.Address)
		block.CAFile, block.TLSServerName = os.Getenv("CONSUL_CACERT"), os.Getenv("CONSUL_TLS_SERVER_NAME")
		block.CertFile, block.KeyFile = os.Getenv("CONSUL_CLIENT_CERT"), os.Getenv("CONSUL_CLIENT_KEY")
	}
	in.Consul, in.Audience = block.Consul, block.Audience
	folder, err := f.folder()
	if err != nil {
		return in, err
	}
	in.NodeTokenFile = cmp.Or(block.TokenFile, filepath.Join(folder, "consul.token"))
	in.SidsTokenFile = filepath.Join(folder, "consul-acl.token")
	if f.name != service.DefaultConsul {
		in.NodeTokenFile = cmp.Or(block.TokenFile, filepath.Join(folder, "consul-"+f.name+".token"))
		in.SidsTokenFile = filepath.Join(folder, "consul-acl-"+f.name+".token")
	}
	if in.Services, err = servicePatterns(f.services); err != nil {
		return in, err
	}
	if f.jwksCA != "" {
		text, err := os.ReadFile(f.jwksCA)
		if err != nil {
			return in, Usage("-jwks-ca: %w", err)
		}
		in.JWKSCA = string(text)
	}
	in.Token = os.Getenv("CONSUL_HTTP_TOKEN")
	if path := os.Getenv("CONSUL_HTTP_TOKEN_FILE"); path != "" && in.Token == "" {
		text, err := os.ReadFile(path)
		if err != nil {
			return in, fmt.Errorf("CONSUL_HTTP_TOKEN_FILE: %w", err)
		}
		in.Token = strings.TrimSpace(string(text))
	}
	return in, nil
}

// folder is where tokens go for which the configuration has no file: beside it.
func (f *setupFlags) folder() (string, error) {
	if len(f.paths) == 0 {
		return config.SystemDir, nil
	}
	path, err := filepath.Abs(f.paths[0])
	if err != nil {
		return "", err
	}
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		return path, nil
	}
	return filepath.Dir(path), nil
}

// servicePatterns reads the flag -services.
func servicePatterns(flags []string) (map[string][]string, error) {
	if len(flags) == 0 {
		return nil, nil
	}
	all := map[string][]string{}
	for _, flag := range flags {
		namespace, names, ok := strings.Cut(flag, "=")
		if !ok || names == "" || claim.CheckID(namespace) != nil {
			return nil, Usage("-services %q has another form than NAMESPACE=NAME,NAME", flag)
		}
		all[namespace] = append(all[namespace], strings.Split(names, ",")...)
	}
	return all, nil
}

// runSids runs the plugin's binary. The token goes through a pipe, and nothing of the environment.
func runSids(ctx context.Context, errs io.Writer, binary string, in setupInput) (setupReport, error) {
	var report setupReport
	text, err := json.Marshal(in)
	if err != nil {
		return report, err
	}
	var out bytes.Buffer
	cmd := exec.CommandContext(ctx, binary, "setup")
	cmd.Env, cmd.Stdin, cmd.Stdout, cmd.Stderr = []string{}, bytes.NewReader(text), &out, errs
	if err := cmd.Run(); err != nil {
		return report, fmt.Errorf("run %s setup: %w", binary, err)
	}
	if err := json.Unmarshal(out.Bytes(), &report); err != nil {
		return report, fmt.Errorf("the answer of %s setup: %w", binary, err)
	}
	return report, nil
}

func showSetup(p *Printer, r setupReport, err error) error {
	err = p.Print(r, err, func() {
		for _, s := range r.Steps {
			p.Say("%s: %s", s.Object, s.Text)
		}
		if r.Config != "" {
			p.write("\nThe agent's configuration needs, and then the agent a restart:\n\n" + r.Config)
		}
	})
	if err != nil {
		return err
	}
	if r.Error != "" {
		return errors.New(r.Error)
	}
	for _, s := range r.Steps {
		if s.Wrong {
			return silentExit(ExitError)
		}
	}
	return nil
}
