package cluster

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/pannier/pannier/cluster/acl"
	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/command"
	"github.com/pannier/pannier/cluster/state"
)

// Blocking makes a query wait until what it reads has changed after MinIndex, or Wait is
// over. The zero value is answered at once.
type Blocking = command.Blocking

// maxWait bounds how long a query may be kept waiting.
const maxWait = 10 * time.Minute

// Queries read the ledger of the server that leads, never a stale one: a Node and a Client
// have them. Each answers with an index, which is what Blocking wants for the next.
type Queries struct{ to asker }

// asker brings a query to the leader and back comes its answer.
type asker interface {
	ask(ctx context.Context, q command.Query) (answer any, index uint64, err error)
}

// Volume is a volume with the modes that it is in use with. Errors: ErrVolumeNotFound.
func (q Queries) Volume(ctx context.Context, ref claim.VolumeRef, b Blocking) (claim.Volume, uint64, error) {
	return query[claim.Volume](ctx, q.to, &command.QueryVolume{Ref: ref, Blocking: b})
}

// ClaimsOf are a workload's claims, by volume.
func (q Queries) ClaimsOf(ctx context.Context, ref claim.WorkloadRef, b Blocking) ([]claim.Claim, uint64, error) {
	return query[[]claim.Claim](ctx, q.to, &command.QueryClaims{Workload: ref, Blocking: b})
}

// Workload is a workload's record. Errors: ErrWorkloadNotFound.
func (q Queries) Workload(ctx context.Context, ref claim.WorkloadRef, b Blocking) (claim.Workload, uint64, error) {
	return query[claim.Workload](ctx, q.to, &command.QueryWorkload{Ref: ref, Blocking: b})
}

// OnNode is what runs or waits on a node, and all claims there.
func (q Queries) OnNode(ctx context.Context, node string, b Blocking) (command.OnNode, uint64, error) {
	return query[command.OnNode](ctx, q.to, &command.QueryOnNode{Node: node, Blocking: b})
}

// TokensOn are the tokens on a node; their workloads may be gone.
func (q Queries) TokensOn(ctx context.Context, node string, b Blocking) ([]claim.Token, uint64, error) {
	return query[[]claim.Token](ctx, q.to, &command.QueryTokens{Node: node, Blocking: b})
}

// NodeRecord is what the ledger knows of a node. Errors: ErrNodeNotFound.
func (q Queries) NodeRecord(ctx context.Context, name string, b Blocking) (claim.Node, uint64, error) {
	return query[claim.Node](ctx, q.to, &command.QueryNode{Name: name, Blocking: b})
}

// Left are those of some workloads, at most command.MaxAfter, that have not ended. One that
// the ledger does not know counts as ended.
func (q Queries) Left(ctx context.Context, of []claim.WorkloadRef, b Blocking) ([]claim.WorkloadRef, uint64, error) {
	return query[[]claim.WorkloadRef](ctx, q.to, &command.QueryLeft{Of: of, Blocking: b})
}

// Cluster is the cluster's identity; its id is empty while it has none.
func (q Queries) Cluster(ctx context.Context, b Blocking) (claim.Cluster, uint64, error) {
	return query[claim.Cluster](ctx, q.to, &command.QueryCluster{Blocking: b})
}

// Granted is a token with its policies, by the SHA-256 of its secret; empty: the policy for
// calls without a token, where there is one. It may have expired. Errors:
// acl.ErrTokenNotFound.
func (q Queries) Granted(ctx context.Context, secretHash string, b Blocking) (acl.Granted, uint64, error) {
	return query[acl.Granted](ctx, q.to, &command.QueryACL{SecretHash: secretHash, Blocking: b})
}

// query brings a query to the leader and gives its answer the type that it has.
func query[A any](ctx context.Context, to asker, q command.Query) (answer A, index uint64, err error) {
	got, index, err := to.ask(ctx, q)
	if err != nil {
		return answer, index, err
	}
	answer, ok := got.(A)
	if !ok {
		return answer, index, fmt.Errorf("%T has the answer %T, not %T", q, got, answer)
	}
	return answer, index, nil
}

// ask answers a query here where this node leads, and elsewhere otherwise.
func (n *Node) ask(ctx context.Context, q command.Query) (any, uint64, error) {
	if n.remote == nil {
		if err := n.WaitReady(ctx); err != nil {
			return nil, 0, err
		}
		return n.answer(ctx, q)
	}
	if n.Leader() {
		answer, index, err := n.answer(ctx, q)
		if !errors.Is(err, command.ErrNotLeader) || ctx.Err() != nil {
			return answer, index, err
		}
	}
	return forwarder{n.remote}.ask(ctx, q)
}

// AnswerQuery answers another agent's query where this server leads. With ErrNotLeader and ErrClosed the query may be
// repeated.
func (n *Node) AnswerQuery(ctx context.Context, q command.Query) (answer any, index uint64, err error) {
	return n.answer(ctx, q)
}

// answer answers a query from this node's ledger, which leads, when it is due.
func (n *Node) answer(ctx context.Context, q command.Query) (any, uint64, error) {
	b := q.Blocks()
	if b.Wait > 0 && b.MinIndex > 0 {
		if err := n.waitChange(ctx, b, state.Topics(q)); err != nil {
			return nil, 0, err
		}
	}
	if err := n.verifyLeader(ctx); err != nil {
		return nil, 0, err
	}
	return n.store.Answer(q)
}

// waitChange waits as a query asks for, as long as this node leads.
func (n *Node) waitChange(ctx context.Context, b Blocking, topics []state.Topic) error {
	leading, _ := n.leadership.get()
	if leading == nil {
		return command.ErrNotLeader
	}
	waiting, cancel := context.WithTimeout(ctx, min(b.Wait, maxWait))
	defer cancel()
	for {
		changed := n.store.Watch(waiting, topics...)
		if n.store.ChangedAt(topics...) > b.MinIndex {
			return nil
		}
		select {
		case <-changed:
		case <-leading.Done():
			return command.ErrNotLeader
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if waiting.Err() != nil {
			return nil
		}
		if err := n.store.Err(); errors.Is(err, command.ErrClosed) {
			return err
		}
	}
}

// ReadChanged is ReadLatest when one of the topics has changed after the index, or the wait is
// over. fn reads what depends on the topics only. The answer's index is for the next read.
func (n *Node) ReadChanged(ctx context.Context, b Blocking, topics []state.Topic, fn func(tx *state.ReadTx) error) (index uint64, err error) {
	if b.Wait > 0 && b.MinIndex > 0 {
		if err := n.waitChange(ctx, b, topics); err != nil {
			return 0, err
		}
	}
	if err := n.verifyLeader(ctx); err != nil {
		return 0, err
	}
	index = n.store.ChangedAt(topics...)
	return index, n.store.View(fn)
}

// ReadHere is ReadChanged of this server's ledger as it is, leader or not: Age says how old
// that may be. After a start it waits until the server has caught up with the one that leads;
// while nobody does, what is here is all that there is to know.
func (n *Node) ReadHere(ctx context.Context, b Blocking, topics []state.Topic, fn func(tx *state.ReadTx) error) (index uint64, err error) {
	if n.Stats().LeaderName != "" {
		if err := n.WaitReady(ctx); err != nil {
			return 0, err
		}
	}
	waiting, cancel := context.WithTimeout(ctx, min(b.Wait, maxWait))
	defer cancel()
	for b.MinIndex > 0 {
		changed := n.store.Watch(waiting, topics...)
		if n.store.ChangedAt(topics...) > b.MinIndex || waiting.Err() != nil {
			break
		}
		<-changed // also when waiting ends, and when the node is closed
		if n.running.Err() != nil {
			return 0, command.ErrClosed
		}
	}
	if ctx.Err() != nil {
		return 0, context.Cause(ctx)
	}
	index = n.store.ChangedAt(topics...)
	return index, n.store.View(fn)
}

// ReadLatest is Read on the leader, with all that was acknowledged to anyone before it was
// called. Errors: ErrNotLeader, and those of ctx and of fn.
func (n *Node) ReadLatest(ctx context.Context, fn func(tx *state.ReadTx) error) error {
	if err := n.verifyLeader(ctx); err != nil {
		return err
	}
	return n.store.View(fn)
}

// Age is how old what Read sees may be: the time since this server heard from the
// leader; 0 on the leader itself, negative where it never has.
func (n *Node) Age() time.Duration { return n.raft.SinceContact() }

// verifyLeader makes sure that no other server has led since before it was called, and that
// this one's ledger has all that was agreed on under the leaders before it.
func (n *Node) verifyLeader(ctx context.Context) error {
	term := n.leadership.since()
	if term == 0 {
		return command.ErrNotLeader
	}
	if err := n.verifying.join(ctx, n.verify); err != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if n.running.Err() != nil {
			return command.ErrClosed
		}
		return command.ErrNotLeader
	}
	// It may have lost the lead and led again: then its ledger may not have caught up yet.
	if n.raft.CurrentTerm() != term {
		return command.ErrNotLeader
	}
	return nil
}

// verify asks the other servers. Raft does not answer what it still holds when it is shut
// down, so that Close waits for it.
func (n *Node) verify() error {
	n.mu.Lock()
	if n.closed {
		n.mu.Unlock()
		return command.ErrClosed
	}
	n.inFlight.Add(1)
	n.mu.Unlock()
	defer n.inFlight.Done()
	return n.raft.VerifyLeader().Error()
}

// verifier lets many readers share one round of messages to the other servers: all that
// came before it begins.
type verifier struct {
	mu      sync.Mutex
	next    *round
	running sync.Mutex // one round at a time
}

type round struct {
	done chan struct{}
	err  error
}

// join waits for a round that begins after it was called.
func (v *verifier) join(ctx context.Context, verify func() error) error {
	v.mu.Lock()
	r := v.next
	if r == nil {
		r = &round{done: make(chan struct{})}
		v.next = r
		go v.run(r, verify)
	}
	v.mu.Unlock()
	select {
	case <-r.done:
		return r.err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (v *verifier) run(r *round, verify func() error) {
	v.running.Lock()
	defer v.running.Unlock()
	v.mu.Lock()
	v.next = nil
	v.mu.Unlock()
	r.err = verify()
	close(r.done)
}
