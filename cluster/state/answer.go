package state

import (
	"errors"
	"fmt"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/command"
)

// Topics returns the topics on which the answer to the query depends.
func Topics(q command.Query) []Topic {
	switch q := q.(type) {
	case *command.QueryVolume:
		return []Topic{TopicVolume(q.Ref), TopicClaims(q.Ref)}
	case *command.QueryWorkload:
		return []Topic{TopicWorkload(q.Ref)}
	case *command.QueryClaims:
		return []Topic{TopicWorkload(q.Workload)}
	case *command.QueryNode:
		return []Topic{TopicNode(q.Name)}
	case *command.QueryOnNode:
		return []Topic{TopicOnNode(q.Node)}
	case *command.QueryTokens:
		return []Topic{TopicTokensOn(q.Node)}
	case *command.QueryLeft:
		topics := make([]Topic, len(q.Of))
		for i, ref := range q.Of {
			topics[i] = TopicWorkload(ref)
		}
		return topics
	case *command.QueryCluster:
		return []Topic{TopicCluster}
	case *command.QueryACL:
		return []Topic{TopicACL}
	default:
		return nil
	}
}

// Answer answers a query from the ledger of this server, at once. Nothing that the query reads has changed after
// index, which is valid with a refusal too.
func (s *Store) Answer(q command.Query) (answer any, index uint64, err error) {
	index = s.ChangedAt(Topics(q)...)
	err = s.View(func(tx *ReadTx) error {
		answer, err = tx.answer(q)
		return err
	})
	if err != nil {
		return nil, index, err
	}
	return answer, index, nil
}

// answer dispatches queries.
func (tx *ReadTx) answer(q command.Query) (any, error) {
	switch q := q.(type) {
	case *command.QueryVolume:
		return tx.Volume(q.Ref)
	case *command.QueryWorkload:
		return tx.Workload(q.Ref)
	case *command.QueryClaims:
		return tx.ClaimsOf(q.Workload)
	case *command.QueryNode:
		return tx.Node(q.Name)
	case *command.QueryOnNode:
		return tx.onNode(q.Node)
	case *command.QueryTokens:
		return tx.TokensOn(q.Node)
	case *command.QueryLeft:
		return tx.left(q.Of)
	case *command.QueryCluster:
		c, _, err := tx.Cluster()
		return c, err
	case *command.QueryACL:
		return tx.ACLGranted(q.SecretHash)
	default:
		return nil, fmt.Errorf("%w: %T", command.ErrUnknownQuery, q)
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
	if len(of) > command.MaxAfter {
		return nil, &claim.FieldError{Object: "workloads to wait for", Field: "of", Problem: fmt.Sprintf("are %d: at most %d are allowed", len(of), command.MaxAfter)}
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
