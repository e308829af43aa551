package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/sdk"
	"github.com/pannier/pannier/sdk/bootstrap"
	"github.com/pannier/pannier/sdk/identity"
	"github.com/pannier/pannier/sdk/registration"
	"github.com/pannier/pannier/sdk/service"
)

// tokens is an identity plugin. A token is a file named by its secret.
type tokens struct{ *plugin }

func (t *tokens) Derive(ctx context.Context, c service.Consul, req identity.DeriveRequest) (identity.Token, string,
	error,
) {
	if req.ID == "" {
		return identity.Token{}, "", status.Error(codes.InvalidArgument, "no id")
	}
	if err := t.reach(ctx, c.Address, req.Subject.Workload, req.JWT); err != nil {
		return identity.Token{}, "", err
	}
	token, secret := identity.Token{Accessor: req.ID, Subject: req.Subject}, secretOf(req.ID)
	text, err := json.Marshal(token)
	if err == nil && t.own {
		_, err = sdk.HostState().CompareAndSwap(ctx, "token/"+secret, nil, text)
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(t.state, secret), text, 0o600)
	}
	return token, secret, err
}

func secretOf(accessor string) string {
	sum := sha256.Sum256([]byte(accessor))
	return hex.EncodeToString(sum[:])
}

func (t *tokens) Read(ctx context.Context, c service.Consul, secret string) (token identity.Token, err error) {
	if err := t.reach(ctx, c.Address, "read", secret); err != nil {
		return token, err
	}
	text, err := os.ReadFile(filepath.Join(t.state, filepath.Base(secret)))
	if err == nil && t.own {
		var found bool
		if _, found, err = sdk.HostState().Get(ctx, "token/"+secret); err == nil && !found {
			err = os.ErrNotExist
		}
	}
	if err != nil {
		if t.mode == "lenient" {
			return token, nil
		}
		return token, status.Error(codes.NotFound, "no such token")
	}
	return token, json.Unmarshal(text, &token)
}

func (t *tokens) Revoke(ctx context.Context, c service.Consul, token identity.Token, secret string) error {
	if err := t.reach(ctx, c.Address, "revoke", secret); err != nil {
		return err
	}
	if t.own && t.mode != "own-revokes-not" {
		t.gone(secretOf(token.Accessor))
		return sdk.HostState().Delete(ctx, "token/"+secretOf(token.Accessor))
	}
	if t.mode == "revokes-all" { // those of the same workload
		own, err := t.Read(ctx, c, secret)
		if err != nil {
			return nil // it is gone
		}
		all, err := t.List(ctx, c, own.Subject.Cluster)
		for _, token := range all {
			if token.Subject == own.Subject {
				t.gone(secretOf(token.Accessor))
			}
		}
		return err
	}
	if secret != "" && !strings.HasSuffix(t.mode, "revokes-not") {
		t.gone(filepath.Base(secret))
	}
	return nil
}

func (t *tokens) List(ctx context.Context, c service.Consul, cluster string) (out []identity.Token, err error) {
	if err := t.reach(ctx, c.Address, "list", ""); err != nil {
		return nil, err
	}
	if t.own {
		if _, err := sdk.HostState().List(ctx, "token/"); err != nil {
			return nil, err
		}
	}
	files, err := os.ReadDir(t.state)
	for _, f := range files {
		// A follower of Consul's has a new token a moment later.
		if info, err := f.Info(); t.mode == "late" && err == nil && time.Since(info.ModTime()) < time.Second {
			continue
		}
		var token identity.Token
		text, readErr := os.ReadFile(filepath.Join(t.state, f.Name()))
		if readErr == nil && json.Unmarshal(text, &token) == nil && token.Subject.Cluster == cluster {
			out = append(out, token)
		}
	}
	return out, err
}

// services is a registration plugin. An instance is the file STATE/svc/ID with its owner.
type services struct{ *plugin }

func (s *services) file(id string) string {
	return filepath.Join(s.state, "svc", strings.ReplaceAll(id, ":", "-"))
}

// register writes an instance, and says whether it was not there.
func (s *services) register(i registration.Instance) (added bool, err error) {
	if i.ID == "" {
		return false, status.Error(codes.InvalidArgument, "no id")
	}
	_, err = os.Stat(s.file(i.ID))
	text := i.Owner.Cluster + "/" + i.Owner.Node
	added = err != nil
	return added, errors.Join(os.MkdirAll(filepath.Dir(s.file(i.ID)), 0o700), os.WriteFile(s.file(i.ID), []byte(text), 0o600))
}

func (s *services) Register(ctx context.Context, c service.Consul, i registration.Instance) (string, error) {
	if err := s.reach(ctx, c.Address, i.Workload, ""); err != nil {
		return "", err
	}
	_, err := s.register(i)
	return i.ID + "-sidecar-proxy", err
}

func (s *services) Deregister(ctx context.Context, c service.Consul, _ registration.Owner, id string) error {
	err := s.reach(ctx, c.Address, strings.ReplaceAll(id, ":", "-"), "")
	if err == nil && id != "" && !strings.HasSuffix(s.mode, "keeps-registered") {
		err = os.RemoveAll(s.file(id))
	}
	return err
}

func (s *services) Sync(ctx context.Context, c service.Consul, req registration.SyncRequest) (uint64,
	[]registration.Change, error,
) {
	if err := s.reach(ctx, c.Address, "sync", ""); err != nil {
		return 0, nil, err
	}
	var changes []registration.Change
	if s.mode == "broken" && len(req.Instances) > 0 {
		changes = []registration.Change{{ID: "x", Action: registration.Registered, Reason: "why not"}}
	}
	wanted := map[string]bool{}
	for _, i := range req.Instances {
		wanted[s.file(i.ID)] = true
		if added, err := s.register(i); err != nil {
			return 0, nil, err
		} else if added {
			changes = append(changes, registration.Change{ID: i.ID, Action: registration.Registered, Reason: "missing"})
		}
	}
	files, err := filepath.Glob(s.file("*"))
	for _, file := range files {
		if text, err := os.ReadFile(file); err == nil && string(text) == req.Owner.Cluster+"/"+req.Owner.Node && !wanted[file] {
			changes = append(changes, registration.Change{ID: filepath.Base(file), Action: registration.Removed, Reason: "unwanted"})
			_ = os.Remove(file)
		}
	}
	return 1, changes, err
}

func (s *services) Heartbeat(ctx context.Context, c service.Consul, _ []registration.Beat) error {
	return s.reach(ctx, c.Address, "heartbeat", "")
}

// proxies is a bootstrap plugin.
type proxies struct{ *plugin }

func (p *proxies) Generate(ctx context.Context, c service.Consul, req bootstrap.Request) (made bootstrap.Result, err error) {
	var secret string
	if req.TokenFile != "" {
		text, err := os.ReadFile(req.TokenFile)
		if err != nil && p.mode != "lenient" {
			return made, status.Error(codes.FailedPrecondition, "the token file cannot be read")
		}
		secret = strings.TrimSpace(string(text))
	}
	out := map[string]any{"proxy": req.ProxyID}
	if p.mode == "unstable" && req.Admin.Port == 19000 {
		out["at"] = p.again()
	}
	if made.Bootstrap, err = json.Marshal(out); err != nil {
		return made, err
	}
	return made, p.reach(ctx, c.Address, req.ProxyID, secret)
}
