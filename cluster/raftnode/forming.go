package raftnode

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"

	"github.com/pannier/pannier/internal/atomicfile"
)

// A cluster is formed once. Gossip may be late and differ from server to server, so no server bootstraps on gossip
// alone: the server whose name sorts first asks each of the others for a promise, and bootstraps raft with them
// when it has all promises. A server gives one promise at a time, writes it to disk before it answers, and gives
// none when it has raft state. A formed cluster's leader asks a server without raft state, before it adds it, to join
// this cluster and no other, which is on disk as well. So no server can end up in two clusters.

// promisedFile keeps the promise until the cluster is formed.
const promisedFile = "forming.json"

// formingInterval is how often a server without a cluster checks what it can do.
const formingInterval = time.Second

// promise is given to the server (To) that forms the cluster of Servers, and to the formed cluster that is joined.
type promise struct {
	To      string   `json:"to"`
	Servers []string `json:"servers"`
	Joins   string   `json:"joins,omitempty"` // the identity of that cluster
}

func (p promise) equal(o promise) bool {
	return p.To == o.To && slices.Equal(p.Servers, o.Servers) && p.Joins == o.Joins
}

// forming is this server's part in forming the cluster.
type forming struct {
	n    *Node
	path string
	log  hclog.Logger

	mu    sync.Mutex
	given promise
	said  map[string]string // the last line logged, by message
}

func newForming(n *Node, log hclog.Logger) (*forming, error) {
	f := &forming{n: n, path: filepath.Join(n.cfg.Dir, promisedFile), log: log, said: map[string]string{}}
	data, err := os.ReadFile(f.path)
	if errors.Is(err, fs.ErrNotExist) {
		return f, nil
	}
	if err == nil {
		err = json.Unmarshal(data, &f.given)
	}
	if err != nil {
		return nil, fmt.Errorf("read the promise to form a cluster, %s: %w", f.path, err)
	}
	return f, nil
}

// run waits until this server has raft state, and forms the cluster if this server has to.
func (f *forming) run(ctx context.Context) {
	for {
		changed := f.n.cfg.Members.Changed()
		if f.n.formed() {
			if err := f.forget(); err != nil {
				f.log.Warn("the promise to form a cluster is no longer needed but could not be removed",
					"file", f.path, "error", err)
			}
			return
		}
		if err := f.try(ctx); err != nil {
			f.say("the cluster cannot be formed yet", "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
		case <-time.After(formingInterval):
		}
	}
}

// try forms the cluster if everything is ready and this server has to. The error names what is missing.
func (f *forming) try(ctx context.Context) error {
	expect := f.n.cfg.BootstrapExpect
	if damage := f.n.abstention.damage(); damage != "" {
		f.say("waiting to recover what was lost from the other servers of the cluster", "lost", damage)
		return nil
	}
	if expect < 1 {
		f.say("waiting to be added to a cluster")
		return nil
	}
	candidates, formed := f.candidates(ctx)
	if formed != "" {
		f.say("waiting to be added to the cluster", "of", formed)
		return f.abandon()
	}
	if len(candidates) < expect {
		f.say("waiting for other servers", "expected", expect, "found", candidates)
		return nil
	}
	if candidates[0] != f.n.cfg.ID {
		return f.abandon()
	}
	want := promise{To: f.n.cfg.ID, Servers: candidates[:expect]}
	if !f.give(ctx, want) {
		return fmt.Errorf("this server has promised %q to be in its cluster", f.promised().To)
	}
	for _, server := range want.Servers[1:] {
		r, err := f.n.streams.ask(ctx, server, ask{Promise: &want})
		if err != nil {
			return err
		}
		if !r.Promise {
			return fmt.Errorf("server %q does not take part: it has raft state (%t), or has promised %q", server,
				r.Status.Formed, r.Status.PromisedTo)
		}
	}
	return f.bootstrap(want)
}

// candidates returns the servers that wait to form a cluster of the same size, by name; formed names a server that
// already has a cluster. Each has said so itself, over TLS: gossip gives its address only.
func (f *forming) candidates(ctx context.Context) (names []string, formed string) {
	for name, s := range f.n.askAll(ctx, f.n.cfg.Members.Members()) {
		switch {
		case s.Formed && name != f.n.cfg.ID:
			formed = name
		case s.Expects == f.n.cfg.BootstrapExpect:
			names = append(names, name)
		default:
			f.say("another server expects another number of servers", "server", name, "expects", s.Expects, "here",
				f.n.cfg.BootstrapExpect)
		}
	}
	slices.Sort(names)
	return names, formed
}

// bootstrap makes the cluster of the servers that have promised.
func (f *forming) bootstrap(with promise) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.given.equal(with) || f.n.formed() {
		return errors.New("another server forms it")
	}
	var c raft.Configuration
	for _, server := range with.Servers {
		c.Servers = append(c.Servers, raft.Server{ID: raft.ServerID(server), Address: raft.ServerAddress(server)})
	}
	if err := f.n.BootstrapCluster(c).Error(); err != nil {
		return fmt.Errorf("bootstrap raft: %w", err)
	}
	f.log.Info("formed the cluster", "servers", with.Servers)
	return f.n.startAlone()
}

func (f *forming) promised() promise {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.given
}

// give reports whether this server gives the promise.
func (f *forming) give(ctx context.Context, p promise) bool {
	before := f.promised()
	if before.To != "" && before.To != p.To && before.To != f.n.cfg.ID && f.stillHolds(ctx, before) {
		return false
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case !f.given.equal(before), before.Joins != "", f.n.formed(), f.n.abstention.damage() != "":
		return false
	case len(p.Servers) != f.n.cfg.BootstrapExpect, !slices.Contains(p.Servers, f.n.cfg.ID):
		return false
	case before.To == f.n.cfg.ID && p.To > before.To:
		return false // this server forms the cluster: its name sorts first
	case f.given.equal(p):
		return true
	}
	// A server that forms a cluster has no state to lose.
	if err := errors.Join(f.n.abstention.end(), f.keep(p)); err != nil {
		f.log.Error("a promise to form a cluster cannot be written to disk", "error", err)
		return false
	}
	return true
}

// join promises a formed cluster, by its identity, to join no other one, and returns which one this server joins. A
// server with raft state promises nothing.
func (f *forming) join(cluster string) (joins string, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.given.Joins != "" || f.n.formed() {
		return f.given.Joins, nil
	}
	p := f.given
	p.Joins = cluster
	return cluster, f.keep(p)
}

// stillHolds reports whether the server that holds an earlier promise still relies on it; true if it does not answer.
func (f *forming) stillHolds(ctx context.Context, p promise) bool {
	r, err := f.n.streams.ask(ctx, p.To, ask{})
	if err != nil {
		f.say("a server that was promised does not answer; if it never comes back, remove the file while this agent is down",
			"server", p.To, "file", f.path, "error", err)
		return true
	}
	return r.Status.Formed || r.Status.PromisedTo == p.To
}

// abandon withdraws the promise that this server gave itself: another server forms the cluster.
func (f *forming) abandon() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.given.To != f.n.cfg.ID || f.n.formed() {
		return nil
	}
	return f.keep(promise{Joins: f.given.Joins})
}

func (f *forming) forget() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.given.equal(promise{}) {
		return nil
	}
	if err := os.Remove(f.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f.given = promise{}
	return nil
}

// keep writes a promise to disk. f.mu is held.
func (f *forming) keep(p promise) error {
	if err := atomicfile.WriteJSON(f.path, p); err != nil {
		return err
	}
	f.given = p
	return nil
}

// say logs what the server waits for, unless it was logged before.
func (f *forming) say(text string, args ...any) { f.tell(hclog.Info, text, args...) }

// tell is say with a level.
func (f *forming) tell(level hclog.Level, text string, args ...any) {
	line := fmt.Sprint(text, args)
	f.mu.Lock()
	again := f.said[text] == line
	f.said[text] = line
	f.mu.Unlock()
	if !again {
		f.log.Log(level, text, args...)
	}
}
