package cli

import (
	"bytes"
	"cmp"
	"context"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/spf13/pflag"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/host/internal/config"
	"github.com/pannier/pannier/host/internal/config/doctor"
	"github.com/pannier/pannier/host/internal/system/signing"
	"github.com/pannier/pannier/sdk/api"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
	"github.com/pannier/pannier/sdk/service"
)

// setupPlugin is the plugin that knows Consul's ACLs, and setupApply its mode in which it changes them.
const (
	setupPlugin = "sids"
	setupApply  = "apply"
)

func setupNoun() noun {
	return nounOf("setup", "Set up what Pannier needs elsewhere", []verb{setupVerb()})
}

// setupFlags are the flags of setup consul.
type setupFlags struct {
	setupInput                // those that it has itself
	paths, services           []string
	name, jwksCA              string
	dryRun, checks, rotateKey bool
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

The exit code is 0 if all is well, and 1 if -check finds something missing or different, in Consul
or in the agent's configuration, if Consul cannot fetch the keys or they lack this host's, or if a
rotation of the key is stuck.`,
		example: "\n-services 'default=web,db,shop-*' -services 'dev=*' -dry-run",
		flags: func(flags *pflag.FlagSet) {
			flags.StringArrayVar(&f.paths, "config", nil,
				"`PATH` of the agent's configuration; may be given more than once (default "+config.SystemDir+", if it is there)")
			flags.StringVar(&f.name, "consul", service.DefaultConsul, "the `NAME` of the consul block")
			flags.BoolVar(&f.Login, "login", false, "services get their tokens by login")
			flags.BoolVar(&f.Minted, "minted", false, "services get minted tokens")
			flags.BoolVar(&f.Gateways, "gateways", false, "the host's token may write what ingress and terminating gateways need")
			flags.BoolVar(&f.Intentions, "intentions", false, "the host's token may say who may call a service")
			flags.StringArrayVar(&f.services, "services", nil, "which services a namespace's workloads may be by login, as "+
				"`NAMESPACE=NAME,...` with * for\nany text; may be given more than once (default: as Consul has it, or default=*)")
			flags.StringVar(&f.JWKSURL, "jwks-url", "", "Consul fetches the public keys from this `URL`, instead of having them")
			flags.StringVar(&f.jwksCA, "jwks-ca", "", "a `FILE` with the CA certificates for that URL")
			flags.BoolVar(&f.Force, "force", false, "let -jwks-url replace another URL, by which others may log in")
			flags.BoolVar(&f.rotateKey, "rotate-key", false, "replace the key that signs, with an overlap")
			flags.BoolVar(&f.dryRun, "dry-run", false, "only show what would be done")
			flags.BoolVar(&f.checks, "check", false, "only show what is missing or different")
			flags.BoolVar(&f.Destroy, "destroy", false, "remove what this command has made, for all hosts of this Consul")
		},
		apart: []string{
			"login minted", "dry-run check", "destroy check", "rotate-key minted", "rotate-key destroy", "rotate-key check",
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
	Force         bool                `json:"force"`
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
	if keys.is != nil && in.Mode == setupApply {
		_ = keys.ask(ctx, false) // what Consul has of them now; else what was known stays
	}
	report.Steps = append(report.Steps, keys.steps(rotate && in.Mode != setupApply)...)
	return report, nil
}

// input makes the plugin's input of the flags, the configuration and the environment.
func (f *setupFlags) input(cfg *config.Agent) (setupInput, error) {
	in := f.setupInput
	in.Mode, in.Node = setupApply, cfg.Name
	switch {
	case f.dryRun:
		in.Mode = "dry-run"
	case f.checks:
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
	of := "-" + f.name
	if f.name == service.DefaultConsul {
		of = ""
	}
	in.NodeTokenFile = cmp.Or(block.TokenFile, filepath.Join(folder, "consul"+of+".token"))
	in.SidsTokenFile = filepath.Join(folder, "consul-acl"+of+".token")
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

// Times of setup consul.
const (
	keysTimeout = 15 * time.Second       // for the agent's answer
	keysPause   = 200 * time.Millisecond // between two questions how far a rotation is
	keysPatient = time.Minute            // until the next key signs
)

// signingKeys are the keys with which the agent's cluster signs, as its leader tells.
type signingKeys struct {
	client *api.Client
	is     *hostv1.SigningKeys
}

// newSigningKeys makes a client of the agent on this machine.
func newSigningKeys(a *App, cfg *config.Agent) (*signingKeys, error) {
	secret, err := a.token()
	if err != nil {
		return nil, Usage("%w", err)
	}
	client, err := api.New("unix://"+cfg.Socket, api.WithToken(secret))
	return &signingKeys{client: client}, err
}

// ask reads the keys. rotate begins to replace the one that signs, unless that has begun.
func (k *signingKeys) ask(ctx context.Context, rotate bool) error {
	ctx, cancel := context.WithTimeout(ctx, keysTimeout)
	defer cancel()
	var resp interface{ GetKeys() *hostv1.SigningKeys }
	var err error
	if rotate {
		resp, err = k.client.Secrets.RotateSigningKey(ctx, &hostv1.RotateSigningKeyRequest{})
	} else {
		resp, err = k.client.Secrets.GetSigningKeys(ctx, &hostv1.GetSigningKeysRequest{})
	}
	if err == nil {
		k.is = resp.GetKeys()
	}
	return err
}

// pems returns the public keys that Consul must have, and the ones that it must no longer have, in PEM.
func (k *signingKeys) pems() (wanted, retired []string, err error) {
	signs, err := publicPEM(k.is.GetSigns())
	if err != nil || k.is.GetOther() == nil {
		return []string{signs}, nil, err
	}
	other, err := publicPEM(k.is.GetOther())
	if k.is.GetOtherState() == hostv1.SigningKeyState_SIGNING_KEY_STATE_WITHDRAWN {
		return []string{signs}, []string{other}, err
	}
	return []string{signs, other}, nil, err
}

func publicPEM(k *hostv1.SigningKey) (string, error) {
	var key jose.JSONWebKey
	err := key.UnmarshalJSON(k.GetPublic())
	var der []byte
	if err == nil {
		der, err = x509.MarshalPKIXPublicKey(key.Key)
	}
	if err != nil {
		return "", fmt.Errorf("the agent's public key %s: %w", k.GetId(), err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})), nil
}

// awaitSigns waits until the next key signs, with a bound: the agent goes on without this command.
func (k *signingKeys) awaitSigns(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, keysPatient)
	defer cancel()
	for k.is.GetOtherState() == hostv1.SigningKeyState_SIGNING_KEY_STATE_NEXT {
		select {
		case <-ctx.Done():
			return
		case <-time.After(keysPause):
		}
		_ = k.ask(ctx, false) // while there is no leader, what was known stays
	}
}

// steps describes a rotation that is under way. would: there is none, and -rotate-key would begin one.
func (k *signingKeys) steps(would bool) []doctor.SetupStep {
	var unknown []doctor.SetupStep
	for _, block := range k.is.GetUnknownTo() {
		unknown = append(unknown, doctor.SetupStep{
			Object: "signing key " + k.is.GetSigns().GetId(), Wrong: true,
			Text: fmt.Sprintf("is not among the keys of the auth method of the consul block %q: its services cannot log in", block),
		})
	}
	other, since := k.is.GetOther().GetId(), k.is.GetSince().AsTime().Format(time.RFC3339)
	step := doctor.SetupStep{Object: "signing key " + k.is.GetSigns().GetId(), Wrong: k.is.GetStuck()}
	why := k.is.GetWaitsFor()
	if why != "" {
		why = ": " + why
	}
	switch k.is.GetOtherState() {
	case hostv1.SigningKeyState_SIGNING_KEY_STATE_NEXT:
		step.Text = fmt.Sprintf("is being replaced by %s since %s%s", other, since, why)
		step.Wrong = true
	case hostv1.SigningKeyState_SIGNING_KEY_STATE_PREVIOUS:
		step.Text = fmt.Sprintf("signs since %s instead of %s%s", since, other, why)
	case hostv1.SigningKeyState_SIGNING_KEY_STATE_WITHDRAWN:
		step.Text = fmt.Sprintf("has replaced %s, which is published no more since %s", other, since)
	default:
		if !would {
			return unknown
		}
		step.Text = "would be replaced"
	}
	return append(unknown, step)
}
