package raftnode

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	wal "github.com/hashicorp/raft-wal"

	"github.com/pannier/pannier/internal/atomicfile"
)

// peersFile, put into the raft directory by an operator, gives a cluster that has lost its quorum for good a new
// set of servers: a JSON list of {"id": "server-1", "non_voter": false}, the same on all remaining servers. It is
// renamed to peersApplied once it was applied.
const (
	peersFile    = "peers.json"
	peersApplied = "peers.applied.json"
)

// termFile is a file with a number, put into the raft directory of a server that has formed a cluster anew. The
// server's next term is above it: agents that remember leaders of the lost cluster follow none of an earlier term.
const termFile = "term"

// raiseTerm applies a term file, if there is one.
func raiseTerm(dir string, store raft.StableStore) error {
	path := filepath.Join(dir, termFile)
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	term, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	key := []byte("CurrentTerm") // raft's
	now, err := store.GetUint64(key)
	if err == nil && now < term {
		err = store.SetUint64(key, term)
	}
	if err != nil {
		return err
	}
	return os.Remove(path)
}

type peer struct {
	ID       string `json:"id"`
	NonVoter bool   `json:"non_voter,omitempty"`
	// Address is accepted, as other programs write one, and ignored: servers are found by name.
	Address string `json:"address,omitempty"`
}

// recoverPeers applies a peers file, if there is one. All entries of the log count as committed then.
func recoverPeers(cfg Config, conf *raft.Config, store *wal.WAL, snapshots raft.SnapshotStore,
	transport raft.Transport, log hclog.Logger,
) (applied bool, err error) {
	path := filepath.Join(cfg.Dir, peersFile)
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	servers, err := parsePeers(data)
	if err != nil {
		return false, fmt.Errorf("%s: %w (it must be a list of the remaining servers: [{\"id\": %q}])", path, err, cfg.ID)
	}
	if err := raft.RecoverCluster(conf, releasing{cfg.FSM}, store, store, snapshots, transport, servers); err != nil {
		return false, fmt.Errorf("recover the cluster with %s: %w", path, err)
	}
	if err := os.Rename(path, filepath.Join(cfg.Dir, peersApplied)); err != nil {
		return false, err
	}
	log.Warn("the peers file was applied: the cluster has the servers that it lists", "file", path, "servers",
		servers.Servers)
	return true, atomicfile.SyncDir(cfg.Dir)
}

func parsePeers(data []byte) (c raft.Configuration, err error) {
	var peers []peer
	if err := json.Unmarshal(data, &peers); err != nil {
		return c, err
	}
	voters := 0
	for _, p := range peers {
		server := raft.Server{ID: raft.ServerID(p.ID), Address: raft.ServerAddress(p.ID)}
		if p.NonVoter {
			server.Suffrage = raft.Nonvoter
		} else {
			voters++
		}
		if p.ID == "" {
			return c, errors.New("a server has no id")
		}
		c.Servers = append(c.Servers, server)
	}
	if voters == 0 {
		return c, errors.New("there is no voter")
	}
	return c, nil
}

// releasing is an FSM whose snapshots are released once they are written: RecoverCluster never releases the one
// that it takes.
type releasing struct{ raft.FSM }

func (r releasing) Snapshot() (raft.FSMSnapshot, error) {
	s, err := r.FSM.Snapshot()
	if err != nil {
		return nil, err
	}
	return released{s}, nil
}

type released struct{ raft.FSMSnapshot }

func (r released) Persist(sink raft.SnapshotSink) error {
	defer r.FSMSnapshot.Release()
	return r.FSMSnapshot.Persist(sink)
}

func (released) Release() {}
