package state

import (
	"fmt"
	"slices"
	"strings"

	"github.com/pannier/pannier/cluster/claim"
)

// Page asks for a part of a list.
type Page struct {
	After string // the cursor that came with the part before; empty: from the start
	Limit int    // at most so many; 0: all
}

func (p Page) span(base, sub string) span {
	s := span{base: base, sub: sub, after: p.After}
	if p.Limit > 0 {
		s.limit = p.Limit + 1 // one more tells whether there is a next page
	}
	return s
}

// cut takes the extra one off again and makes the cursor of the next page.
func cut[T any](p Page, found []T, cursor func(T) string) ([]T, string) {
	if p.Limit <= 0 || len(found) <= p.Limit {
		return found, ""
	}
	found = found[:p.Limit]
	return found, cursor(found[len(found)-1])
}

// Volume reads one volume, with the modes that it is in use with. The error is
// claim.ErrVolumeNotFound where it is not registered.
func (tx *ReadTx) Volume(ref claim.VolumeRef) (claim.Volume, error) {
	v, err := tx.definition(ref)
	if err != nil {
		return v, err
	}
	err = tx.setModes(&v)
	return v, err
}

// definition is a volume without the modes that it is in use with.
func (tx *ReadTx) definition(ref claim.VolumeRef) (claim.Volume, error) {
	v, found, err := read[claim.Volume](tx, volumeKey(ref))
	if err == nil && !found {
		err = fmt.Errorf("volume %q: %w", ref, claim.ErrVolumeNotFound)
	}
	return v, err
}

// setModes fills in the modes that a volume is in use with.
func (tx *ReadTx) setModes(v *claim.Volume) error {
	held, err := records[claim.Claim](tx, span{base: claims + volumePart(v.VolumeRef) + "/", limit: 1})
	if err != nil {
		return err
	}
	setModes(v, held)
	return nil
}

// setModes fills in a volume's modes. They are those of its claims, of which the first
// is enough, and are kept nowhere else: so they come with the first claim and go with the last.
func setModes(v *claim.Volume, held []claim.Claim) {
	if len(held) == 0 {
		v.AccessMode, v.AttachmentMode = "", ""
		return
	}
	first := held[0]
	first.Repair(*v, "")
	v.AccessMode, v.AttachmentMode = first.AccessMode, first.AttachmentMode
}

// VolumeQuery selects volumes. Empty fields select all.
type VolumeQuery struct {
	Namespace string
	Driver    string // volumes of this CSI driver
	Prefix    string // of the id; needs Namespace
	Page
}

// Volumes lists volumes by namespace and id, and gives the cursor of the next
// page; it is empty at the end.
func (tx *ReadTx) Volumes(q VolumeQuery) ([]claim.Volume, string, error) {
	sub := ""
	if q.Namespace != "" {
		sub = q.Namespace + "/" + q.Prefix
	}
	var found []claim.Volume
	var err error
	if q.Driver == "" {
		found, err = records[claim.Volume](tx, q.span(volumes, sub))
	} else {
		found, err = indexed(tx, q.span(volumesByDriver+q.Driver+"/", sub), func(part string) string { return volumes + part }, read[claim.Volume])
	}
	if err != nil {
		return nil, "", err
	}
	found, next := cut(q.Page, found, func(v claim.Volume) string { return volumePart(v.VolumeRef) })
	for i := range found {
		if err := tx.setModes(&found[i]); err != nil {
			return nil, "", err
		}
	}
	return found, next, nil
}

// Claim reads one claim. The error is claim.ErrClaimNotFound where there is none.
func (tx *ReadTx) Claim(v claim.VolumeRef, w claim.WorkloadRef) (claim.Claim, error) {
	c, found, err := readClaim(tx, claimKey(v, w))
	if err == nil && !found {
		err = fmt.Errorf("claim of workload %q on volume %q: %w", w, v, claim.ErrClaimNotFound)
	}
	return c, err
}

// readClaim reads a claim and repairs it where an older version left something
// out.
func readClaim(tx *ReadTx, key string) (claim.Claim, bool, error) {
	c, found, err := read[claim.Claim](tx, key)
	if err != nil || !found {
		return c, false, err
	}
	err = tx.repair(&c)
	return c, true, err
}

func (tx *ReadTx) repair(c *claim.Claim) error {
	if !c.Damaged() {
		return nil
	}
	v, _, err := read[claim.Volume](tx, volumeKey(c.Volume))
	if err != nil {
		return err
	}
	w, _, err := read[claim.Workload](tx, workloadKey(c.Workload))
	if err != nil {
		return err
	}
	c.Repair(v, w.Node)
	return nil
}

// Claims lists the claims that stand on a volume, by workload.
func (tx *ReadTx) Claims(v claim.VolumeRef) ([]claim.Claim, error) {
	return tx.someClaims(v, 0)
}

func (tx *ReadTx) someClaims(v claim.VolumeRef, limit int) ([]claim.Claim, error) {
	return tx.claimsIn(span{base: claims + volumePart(v) + "/", limit: limit})
}

func (tx *ReadTx) claimsIn(s span) ([]claim.Claim, error) {
	found, err := records[claim.Claim](tx, s)
	if err != nil {
		return nil, err
	}
	for i := range found {
		if err := tx.repair(&found[i]); err != nil {
			return nil, err
		}
	}
	return found, nil
}

// AllClaims lists every claim, by volume and workload.
func (tx *ReadTx) AllClaims() ([]claim.Claim, error) {
	return tx.claimsIn(span{base: claims})
}

// ClaimsOf lists a workload's claims, by volume.
func (tx *ReadTx) ClaimsOf(w claim.WorkloadRef) ([]claim.Claim, error) {
	return indexed(tx, span{base: claimsByWorkload + workloadPart(w) + "/"}, func(part string) string {
		return claims + part + "/" + workloadPart(w)
	}, readClaim)
}

// ClaimsOn lists the claims on a node, by volume and workload.
func (tx *ReadTx) ClaimsOn(node string) ([]claim.Claim, error) {
	found, err := tx.claimsAt(span{base: claimsByNode + node + "/"})
	if err != nil || node == "" {
		return found, err
	}
	lost, err := tx.claimsWithoutNode(node)
	return append(found, lost...), err
}

// claimsWithoutNode lists claims whose record has no node, and which are on none in the index:
// they are given their node, here this one, when they are read.
func (tx *ReadTx) claimsWithoutNode(node string) ([]claim.Claim, error) {
	lost, err := tx.claimsAt(span{base: claimsByNode + "/"})
	return slices.DeleteFunc(lost, func(c claim.Claim) bool { return c.Node != node }), err
}

// Releasing lists the claims that are on their way out, by volume and workload,
// and gives the cursor of the next page; it is empty at the end.
func (tx *ReadTx) Releasing(p Page) ([]claim.Claim, string, error) {
	found, err := tx.claimsAt(p.span(claimsReleasing, ""))
	if err != nil {
		return nil, "", err
	}
	found, next := cut(p, found, func(c claim.Claim) string { return claimPart(c.Volume, c.Workload) })
	return found, next, nil
}

func (tx *ReadTx) claimsAt(s span) ([]claim.Claim, error) {
	return indexed(tx, s, func(part string) string { return claims + part }, readClaim)
}

// Workload reads one workload. The error is claim.ErrWorkloadNotFound where the
// ledger knows none.
func (tx *ReadTx) Workload(ref claim.WorkloadRef) (claim.Workload, error) {
	w, found, err := read[claim.Workload](tx, workloadKey(ref))
	if err == nil && !found {
		err = fmt.Errorf("workload %q: %w", ref, claim.ErrWorkloadNotFound)
	}
	return w, err
}

// Workloads lists workloads by namespace and id, of one namespace or, with an
// empty one, of all, and gives the cursor of the next page.
func (tx *ReadTx) Workloads(namespace string, p Page) ([]claim.Workload, string, error) {
	sub := ""
	if namespace != "" {
		sub = namespace + "/"
	}
	found, err := records[claim.Workload](tx, p.span(workloads, sub))
	if err != nil {
		return nil, "", err
	}
	found, next := cut(p, found, func(w claim.Workload) string { return workloadPart(w.Ref) })
	return found, next, nil
}

// WorkloadsOn lists the workloads that run or wait on a node, by namespace and id.
func (tx *ReadTx) WorkloadsOn(node string) ([]claim.Workload, error) {
	return indexed(tx, span{base: workloadsByNode + node + "/"}, func(part string) string { return workloads + part }, read[claim.Workload])
}

// Node reads one node. The error is claim.ErrNodeNotFound where there is none.
func (tx *ReadTx) Node(name string) (claim.Node, error) {
	n, found, err := read[claim.Node](tx, nodeKey(name))
	if err == nil && !found {
		err = fmt.Errorf("node %q: %w", name, claim.ErrNodeNotFound)
	}
	return n, err
}

// Cluster reads the cluster's identity; found is false while it has none.
func (tx *ReadTx) Cluster() (c claim.Cluster, found bool, err error) {
	return read[claim.Cluster](tx, identity)
}

// Nodes lists all nodes by name.
func (tx *ReadTx) Nodes() ([]claim.Node, error) {
	return records[claim.Node](tx, span{base: nodes})
}

// Driver reads one driver with what each node says of it. The error is
// claim.ErrDriverNotFound where no node has had it of late.
func (tx *ReadTx) Driver(id string) (claim.Driver, error) {
	d, found, err := read[claim.Driver](tx, driverKey(id))
	if err != nil {
		return d, err
	}
	if !found {
		return d, fmt.Errorf("driver %q: %w", id, claim.ErrDriverNotFound)
	}
	err = tx.setNodes(&d)
	return d, err
}

func (tx *ReadTx) setNodes(d *claim.Driver) error {
	d.Nodes = map[string]claim.NodeDriver{}
	return tx.scan(span{base: driversByNode + d.ID + "/"}, true, func(node string, value []byte) error {
		n, err := decode[claim.NodeDriver](value)
		if err != nil {
			return fault("read driver %q on node %q: %w", d.ID, node, err)
		}
		d.Nodes[node] = n
		return nil
	})
}

// Drivers lists all drivers by id, with what each node says of them.
func (tx *ReadTx) Drivers() ([]claim.Driver, error) {
	found, err := records[claim.Driver](tx, span{base: drivers})
	if err != nil {
		return nil, err
	}
	for i := range found {
		if err := tx.setNodes(&found[i]); err != nil {
			return nil, err
		}
	}
	return found, nil
}

// Token reads one token's record. The error is claim.ErrTokenNotFound where the ledger
// knows none.
func (tx *ReadTx) Token(id string) (claim.Token, error) {
	t, found, err := read[claim.Token](tx, tokenKey(id))
	if err == nil && !found {
		err = fmt.Errorf("token %q: %w", id, claim.ErrTokenNotFound)
	}
	return t, err
}

// Tokens lists the tokens of one namespace or, with an empty one, of all, by namespace
// and workload. Their workloads may be gone.
func (tx *ReadTx) Tokens(namespace string) ([]claim.Token, error) {
	sub := ""
	if namespace != "" {
		sub = namespace + "/"
	}
	return tx.tokensAt(span{base: tokensByWorkload, sub: sub})
}

// TokensOf lists a workload's tokens, those of its runs before included.
func (tx *ReadTx) TokensOf(ref claim.WorkloadRef) ([]claim.Token, error) {
	return tx.tokensAt(span{base: tokensByWorkload, sub: workloadPart(ref) + "/"})
}

// TokensOn lists the tokens of a node.
func (tx *ReadTx) TokensOn(node string) ([]claim.Token, error) {
	return tx.tokensAt(span{base: tokensByNode, sub: node + "/"})
}

// tokensAt reads the tokens that an index's keys lead to: their last part is the id.
func (tx *ReadTx) tokensAt(s span) ([]claim.Token, error) {
	return indexed(tx, s, func(part string) string { return tokens + part[strings.LastIndexByte(part, '/')+1:] }, read[claim.Token])
}

// SigningKey reads the cluster's signing key; found is false while it has none.
func (tx *ReadTx) SigningKey() (k claim.SigningKey, found bool, err error) {
	return read[claim.SigningKey](tx, signingKey)
}
