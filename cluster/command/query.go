package command

import (
	"fmt"
	"reflect"
	"time"

	"github.com/pannier/pannier/cluster/acl"
	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/codec"
	"github.com/pannier/pannier/internal/errcode"
)

// ErrUnknownQuery means that the query was sent by a newer program.
var ErrUnknownQuery = errcode.Unimplemented.New("unknown query (of a newer version: upgrade this server)")

// Query is a read that agents without a ledger send to the leader, encoded as one byte of kind and its fields.
type Query interface {
	// Blocks returns after which index, and for how long, the answer may be waited for.
	Blocks() Blocking
	// Block makes the query wait.
	Block(b Blocking)
}

// QueryOf is a query with the answer A.
type QueryOf[A any] interface {
	Query
	asks(A)
}

// Asks is embedded in every query and names the type of its answer.
type Asks[A any] struct{ Blocking }

func (*Asks[A]) asks(A) {}

// Blocking is part of every query. With a MinIndex the query is answered once what it reads has changed after that
// index, or when Wait has passed.
type Blocking struct {
	MinIndex uint64        `json:"min_index,omitempty"` // index of the previous answer; 0: answer at once
	Wait     time.Duration `json:"wait,omitempty"`
}

// Blocks returns the blocking of a query.
func (b *Blocking) Blocks() Blocking { return *b }

// Block sets the blocking of a query.
func (b *Blocking) Block(by Blocking) { *b = by }

// QueryVolume asks for a volume, with the modes that it is in use with: a claim.Volume, or
// claim.ErrVolumeNotFound.
type QueryVolume struct {
	Asks[claim.Volume]
	Ref claim.VolumeRef `json:"ref"`
}

// QueryWorkload asks for a workload: a claim.Workload, or claim.ErrWorkloadNotFound.
type QueryWorkload struct {
	Asks[claim.Workload]
	Ref claim.WorkloadRef `json:"ref"`
}

// QueryClaims asks for a workload's claims, by volume: a []claim.Claim.
type QueryClaims struct {
	Asks[[]claim.Claim]
	Workload claim.WorkloadRef `json:"workload"`
}

// QueryNode asks for what the ledger knows of a node: a claim.Node, or claim.ErrNodeNotFound.
type QueryNode struct {
	Asks[claim.Node]
	Name string `json:"name"`
}

// QueryOnNode asks for what is on a node: an OnNode.
type QueryOnNode struct {
	Asks[OnNode]
	Node string `json:"node"`
}

// OnNode answers QueryOnNode: the workloads that run or wait there, and all claims there, including those being
// released.
type OnNode struct {
	Workloads []claim.Workload `json:"workloads,omitempty"`
	Claims    []claim.Claim    `json:"claims,omitempty"`
}

// QueryTokens asks for the tokens on a node: a []claim.Token. Their workloads may be gone.
type QueryTokens struct {
	Asks[[]claim.Token]
	Node string `json:"node"`
}

// QueryLeft asks which of some workloads have not ended: a []claim.WorkloadRef. An unknown workload counts as
// ended.
type QueryLeft struct {
	Asks[[]claim.WorkloadRef]
	Of []claim.WorkloadRef `json:"of"` // at most MaxAfter
}

// QueryCluster asks for the cluster's identity: a claim.Cluster, whose id is empty while it has none.
type QueryCluster struct {
	Asks[claim.Cluster]
}

// QueryACL asks what a token may do, by the SHA-256 of its secret: an acl.Granted, or acl.ErrTokenNotFound. The
// caller checks whether it has expired.
type QueryACL struct {
	Asks[acl.Granted]
	SecretHash string `json:"secret_hash"`
}

// queries is the registry of queries. The key is the number that stands for the query between agents; a number is
// never used again.
var queries = map[queryKind]queryRow{
	1: queryOf(&QueryVolume{}),
	2: queryOf(&QueryWorkload{}),
	3: queryOf(&QueryClaims{}),
	4: queryOf(&QueryNode{}),
	5: queryOf(&QueryOnNode{}),
	6: queryOf(&QueryTokens{}),
	7: queryOf(&QueryLeft{}),
	8: queryOf(&QueryCluster{}),
	9: queryOf(&QueryACL{}),
}

type queryKind byte

type queryRow struct {
	empty  func() Query
	answer func(data []byte) (result any, index uint64, refused, err error)
}

// queryOf returns the row of a query Q with the answer A.
func queryOf[A, Q any, P interface {
	*Q
	QueryOf[A]
}](P) queryRow {
	return queryRow{func() Query { return P(new(Q)) }, decodeReply[A]}
}

var queryKinds = numbersByType(queries, func(r queryRow) any { return r.empty() })

// EncodeQuery encodes a query for another agent. The error is ErrTooLarge.
func EncodeQuery(q Query) ([]byte, error) {
	body, err := codec.Marshal(q)
	if err != nil {
		return nil, fmt.Errorf("encode %T: %w", q, err)
	}
	if len(body)+1 > MaxSize {
		return nil, fmt.Errorf("encode %T: %w: %d bytes, at most %d", q, ErrTooLarge, len(body)+1, MaxSize)
	}
	return append([]byte{byte(queryKinds[reflect.TypeOf(q)])}, body...), nil
}

// DecodeQuery decodes a query, which may be any bytes. The error is ErrUnknownQuery or ErrMalformed.
func DecodeQuery(data []byte) (Query, error) {
	if len(data) == 0 || len(data) > MaxSize {
		return nil, fmt.Errorf("%w: a query of %d bytes", ErrMalformed, len(data))
	}
	known, ok := queries[queryKind(data[0])]
	if !ok {
		return nil, fmt.Errorf("%w: kind %d", ErrUnknownQuery, data[0])
	}
	q := known.empty()
	if err := codec.UnmarshalStrict(data[1:], q); err != nil {
		return nil, fmt.Errorf("%w: %T: %w", ErrMalformed, q, err)
	}
	return q, nil
}

// EncodeAnswer encodes the answer to a query, and an index after which nothing that was read has changed. Errors
// are encoded as in EncodeOutcome.
func EncodeAnswer(result any, index uint64, err error) ([]byte, error) {
	return encodeReply(result, index, err)
}

// DecodeAnswer decodes the answer to q, which may be any bytes. The error is the query's, or ErrMalformed; the
// index is valid with the query's error too.
func DecodeAnswer(q Query, data []byte) (result any, index uint64, err error) {
	result, index, refused, err := queries[queryKinds[reflect.TypeOf(q)]].answer(data)
	if err != nil {
		return nil, 0, fmt.Errorf("%w: answer to %T: %w", ErrMalformed, q, err)
	}
	return result, index, refused
}
