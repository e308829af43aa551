package state

import (
	"errors"
	"fmt"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/command"
)

// Topics returns the topics on which the answer to the query depends.
func Topics(q command.Query) []Topic {
	topics, _ := lookup(q)
	return topics
}

// Answer answers a query from the ledger of this server, at once. Nothing that the query reads has changed after
// index, which is valid with a refusal too.
func (s *Store) Answer(q command.Query) (answer any, index uint64, err error) {
	topics, read := lookup(q)
	index = s.ChangedAt(topics...)
	err = s.View(func(tx *ReadTx) error {
		answer, err = read(tx)
		return err
	})
	if err != nil {
		return nil, index, err
	}
	return answer, index, nil
}

// lookup returns the topics of a query, and what reads its answer.
func lookup(q command.Query) (topics []Topic, read func(*ReadTx) (any, error)) {
	switch q := q.(type) {
	case *command.QueryVolume:
		return []Topic{TopicVolume(q.Ref), TopicClaims(q.Ref)}, func(tx *ReadTx) (any, error) { return tx.Volume(q.Ref) }
	case *command.QueryWorkload:
		return []Topic{TopicWorkload(q.Ref)}, func(tx *ReadTx) (any, error) { return tx.Workload(q.Ref) }
	case *command.QueryClaims:
		return []Topic{TopicWorkload(q.Workload)}, func(tx *ReadTx) (any, error) { return tx.ClaimsOf(q.Workload) }
	case *command.QueryNode:
		return []Topic{TopicNode(q.Name)}, func(tx *ReadTx) (any, error) { return tx.Node(q.Name) }
	case *command.QueryOnNode:
		return []Topic{TopicOnNode(q.Node)}, func(tx *ReadTx) (any, error) { return tx.onNode(q.Node) }
	case *command.QueryTokens:
		return []Topic{TopicTokensOn(q.Node)}, func(tx *ReadTx) (any, error) { return tx.TokensOn(q.Node) }
	case *command.QueryLeft:
		for _, ref := range q.Of {
			topics = append(topics, TopicWorkload(ref))
		}
		return topics, func(tx *ReadTx) (any, error) { return tx.left(q.Of) }
	case *command.QueryCluster:
		return []Topic{TopicCluster}, func(tx *ReadTx) (any, error) {
			c, _, err := tx.Cluster()
			return c, err
		}
	case *command.QueryACL:
		return []Topic{TopicACL}, func(tx *ReadTx) (any, error) { return tx.ACLGranted(q.SecretHash) }
	default:
		return nil, func(*ReadTx) (any, error) { return nil, fmt.Errorf("%w: %T", command.ErrUnknownQuery, q) }
	}
}

func (tx *ReadTx) onNode(node string) (on command.OnNode, err error) {
	if on.Workloads, err = tx.WorkloadsOn(node); err != nil {
		return on, err
	}
	on.Claims, err = tx.ClaimsOn(node)
	return on, err
}

// left returns the workloads that have not ended.
func (tx *ReadTx) left(of []claim.WorkloadRef) ([]claim.WorkloadRef, error) {
	if err := checkCount("workloads to wait for", "of", len(of), command.MaxAfter); err != nil {
		return nil, err
	}
	var left []claim.WorkloadRef
	for _, ref := range of {
		w, err := tx.Workload(ref)
		switch {
		case errors.Is(err, claim.ErrWorkloadNotFound):
		case err != nil:
			return nil, err
		case w.Status != claim.Ended:
			left = append(left, ref)
		}
	}
	return left, nil
}
