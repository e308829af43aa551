// Package setup makes what Pannier needs of a Consul with ACLs: the node's token, and either an auth method with its
// binding rules or a token for minting. It is `sids setup`, which `pannier setup consul` runs.
//
// Invariants:
//   - what does not have mark in its description is neither changed nor removed;
//   - a run that finds such an object in its way changes nothing;
//   - a run that was interrupted is completed by the next one, which makes nothing twice;
//   - secrets come by standard input and go to files for their owner alone.
package setup

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"

	"github.com/hashicorp/consul/api"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/plugins/internal/consul"
	"github.com/pannier/pannier/plugins/sids/internal/tokens"
	"github.com/pannier/pannier/sdk/service"
)

// mark ends the description of each object that is ours.
const mark = "(pannier setup consul)"

// The modes of a run.
const (
	modeApply  = "apply"
	modeDryRun = "dry-run"
	modeCheck  = "check"
)

// Input is what the command line tells, as JSON on standard input.
type Input struct {
	Mode    string `json:"mode"` // apply, dry-run or check
	Destroy bool   `json:"destroy"`
	// Login and Minted say where services' tokens come from; neither: as the configuration says, else by login.
	Login  bool           `json:"login"`
	Minted bool           `json:"minted"`
	Token  string         `json:"token"` // may write ACLs
	Consul service.Consul `json:"consul"`
	// Configured is true if the agent has a consul block: Consul and Audience are from it.
	Configured bool   `json:"configured"`
	Audience   string `json:"audience"`
	Node       string `json:"node"`
	// NodeTokenFile and SidsTokenFile are where the tokens belong, unless the plugin's configuration, SidsConfig, says
	// another place.
	NodeTokenFile string          `json:"node_token_file"`
	SidsTokenFile string          `json:"sids_token_file"`
	SidsConfig    json.RawMessage `json:"sids_config,omitempty"`
	Gateways      bool            `json:"gateways"`
	Intentions    bool            `json:"intentions"`
	// Keys are the agent's public keys in PEM. With JWKSURL, Consul fetches them there, by the certificates JWKSCA.
	Keys    []string `json:"keys"`
	Retired []string `json:"retired,omitempty"` // those that were replaced, and have to be removed
	NoKeys  string   `json:"no_keys"`           // why there are none
	JWKSURL string   `json:"jwks_url"`
	JWKSCA  string   `json:"jwks_ca"`
	Force   bool     `json:"force"` // JWKSURL may replace another one
	// Services are the patterns of the names that a namespace's workloads may have; nil: as Consul has them, or any in
	// the namespace default.
	Services map[string][]string `json:"services"`
}

// Report is the answer, as JSON on standard output.
type Report struct {
	Steps []Step `json:"steps"`
	// Config is what the agent's configuration still lacks.
	Config string `json:"config,omitempty"`
	Error  string `json:"error,omitempty"`
}

// Step is one object: what it is, and what was found and done. Wrong: it is not as it should be.
type Step struct {
	Object string `json:"object"`
	Text   string `json:"text"`
	Wrong  bool   `json:"wrong,omitempty"`
}

// Main is `sids setup`. It returns the exit code: 0 if there is a report.
func Main(ctx context.Context, stdin io.Reader, stdout, stderr io.Writer) int {
	var in Input
	if err := json.NewDecoder(stdin).Decode(&in); err != nil {
		fmt.Fprintf(stderr, "sids setup: read the input: %v: it is run by pannier setup consul\n", err)
		return 1
	}
	if err := json.NewEncoder(stdout).Encode(Run(ctx, in)); err != nil {
		fmt.Fprintf(stderr, "sids setup: %v\n", err)
		return 1
	}
	return 0
}

// Run makes, checks or removes the objects.
func Run(ctx context.Context, in Input) Report {
	pool := consul.NewPool()
	defer func() { _ = pool.Close() }()
	s := &setup{Input: in, pool: pool}
	err := s.run(ctx)
	if err != nil {
		s.report.Error = status.Convert(err).Message()
	}
	return s.report
}

// setup is one run.
type setup struct {
	Input
	sidsConfigured bool // the plugin has a token file
	pool           *consul.Pool
	acl            *api.ACL
	report         Report
}

func (s *setup) run(ctx context.Context) error {
	client, err := s.pool.Client(s.Consul, s.Token)
	if err != nil {
		return err
	}
	s.acl = client.ACL()
	if len(s.SidsConfig) > 0 {
		file, err := tokens.TokenFile(s.SidsConfig, s.Consul.Name) //nolint:contextcheck // it reads a text
		if err != nil {
			return fmt.Errorf("plugin \"sids\": config: %w", err)
		}
		s.SidsTokenFile, s.sidsConfigured = cmp.Or(file, s.SidsTokenFile), file != ""
	}
	s.Minted = s.Minted || !s.Login && s.sidsConfigured && s.Consul.AuthMethod == ""
	if s.Consul.AuthMethod != "" && s.Minted {
		return errors.New("the consul block has an auth_method, so tokens are not minted: remove it, or leave -minted out")
	}
	if enabled, err := s.enabled(ctx); err != nil || !enabled {
		return err
	}
	if s.Mode == modeApply {
		// Obstacles are found before anything is changed.
		first := *s
		first.Mode, first.report = modeDryRun, Report{}
		if err := first.settleAll(ctx); err != nil {
			return err
		}
	}
	if err := s.settleAll(ctx); err != nil || s.Destroy {
		return err
	}
	if s.report.Config = s.missingConfig(); s.report.Config != "" && s.Mode == modeCheck {
		s.step("the agent's configuration", "is incomplete", true)
	}
	if s.Minted {
		return nil
	}
	return s.reachesKeys(ctx)
}

func (s *setup) settleAll(ctx context.Context) error {
	if s.Destroy {
		return s.destroy(ctx)
	}
	return s.establish(ctx)
}

// enabled reports whether Consul has ACLs, and that the token may write them.
func (s *setup) enabled(ctx context.Context) (bool, error) {
	_, _, err := s.acl.TokenList(s.reading(ctx))
	switch {
	case consul.Answered(err, http.StatusUnauthorized):
		s.step("ACLs", "are disabled in this Consul: nothing is needed", false)
		return false, nil
	case consul.Answered(err, http.StatusForbidden):
		return false, fmt.Errorf("%s: the token of CONSUL_HTTP_TOKEN needs the policy acl = \"write\"",
			status.Convert(s.fail(err, "list the tokens")).Message())
	}
	return true, s.fail(err, "list the tokens")
}

func (s *setup) establish(ctx context.Context) error {
	steps := []func(context.Context) error{
		func(ctx context.Context) error { return s.policy(ctx, nodePolicy, s.nodeRules) },
		func(ctx context.Context) error {
			return s.token(ctx, "pannier on "+s.Node, nodePolicy, s.NodeTokenFile)
		},
	}
	if s.Minted {
		steps = append(steps,
			func(ctx context.Context) error {
				return s.policy(ctx, sidsPolicy, func(string) string { return sidsRules })
			},
			func(ctx context.Context) error {
				return s.token(ctx, "pannier sids on "+s.Node, sidsPolicy, s.SidsTokenFile)
			})
	} else {
		steps = append(steps, s.authMethod, s.bindingRules)
	}
	for _, step := range steps {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (s *setup) step(object, text string, wrong bool) {
	s.report.Steps = append(s.report.Steps, Step{object, text, wrong})
}

// settle brings one object into order. fault is what is wrong with it, empty: nothing; verb what change does, such as
// "made".
func (s *setup) settle(object, fault, verb string, change func() error) error {
	switch {
	case fault == "":
		s.step(object, "is there", false)
	case s.Mode == modeCheck:
		s.step(object, fault, true)
	case s.Mode == modeDryRun:
		s.step(object, fault+": would be "+verb, false)
	default:
		if err := change(); err != nil {
			return s.fail(err, "%s: %s", object, fault)
		}
		s.step(object, fault+": "+verb, false)
	}
	return nil
}

// foreign refuses an object that is not ours.
func foreign(object string) error {
	return fmt.Errorf("%s exists and was not made by this command, so it is left alone, and nothing was changed: delete it, "+
		"or hand it over by the description %q", object, mark)
}

func (s *setup) fail(err error, what string, args ...any) error {
	return consul.Error(err, s.Consul, what, args...)
}

// absent reports whether Consul answered a read with that there is no such object.
func absent(err error) bool {
	return consul.Answered(err, http.StatusNotFound) || consul.NoSuchToken(err)
}

func (s *setup) reading(ctx context.Context) *api.QueryOptions {
	return (&api.QueryOptions{RequireConsistent: true}).WithContext(ctx)
}

func (s *setup) writing(ctx context.Context) *api.WriteOptions {
	return (&api.WriteOptions{}).WithContext(ctx)
}
