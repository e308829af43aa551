package state

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/dgraph-io/badger/v4"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/command"
)

// Earlier programs registered a driver's volume under several names, each with claims of its own. Such duplicates are
// found when the ledger is opened; the leader then lets only one of them have claims (cluster.Node).

// HasDuplicates reports whether the ledger had duplicates when it was opened or restored, or got some since.
func (s *Store) HasDuplicates() bool { return s.duplicates.Load() }

// Duplicates returns the other volumes that have the driver and external id of v.
func (tx *ReadTx) Duplicates(v *claim.Volume) ([]claim.VolumeRef, error) {
	same, err := tx.VolumesByExternalID(v.PluginID, v.ExternalID)
	return slices.DeleteFunc(same, func(other claim.VolumeRef) bool { return other == v.VolumeRef }), err
}

// CheckDuplicates refuses a start that wants a claim on a volume of which a duplicate has claims
// (claim.ErrDuplicate).
func (tx *ReadTx) CheckDuplicates(start *command.StartWorkload) error {
	for _, w := range start.Claims {
		if _, err := tx.Claim(w.Volume, start.Ref); !errors.Is(err, claim.ErrClaimNotFound) {
			if err != nil {
				return err
			}
			continue // it has it already
		}
		v, err := tx.definition(w.Volume)
		if errors.Is(err, claim.ErrVolumeNotFound) {
			continue // for which the start is refused
		}
		if err != nil {
			return err
		}
		others, err := tx.Duplicates(&v)
		if err != nil {
			return err
		}
		for _, other := range others {
			held, err := tx.someClaims(other, 1)
			if err != nil {
				return err
			}
			switch {
			case len(held) == 0:
			case other.Namespace != w.Volume.Namespace:
				return fmt.Errorf("volume %q %w, of another namespace, which has claims: an operator has to deregister one of the "+
					"two; the servers' logs name both", w.Volume, claim.ErrDuplicate)
			default:
				return fmt.Errorf("volume %q %w, %q, which workload %q has on node %q: stop that one, and deregister one of the two",
					w.Volume, claim.ErrDuplicate, other, held[0].Workload, held[0].Node)
			}
		}
	}
	return nil
}

// findDuplicates sets HasDuplicates for a ledger that is being opened, and logs which volumes are one at their driver.
func (s *Store) findDuplicates(db *badger.DB) error {
	txn := db.NewTransaction(false)
	defer txn.Discard()
	tx := ReadTx{txn: txn}
	found, before, first := false, "", ""
	err := tx.scan(span{base: volumesByExternalID}, false, func(key string, _ []byte) error {
		parts := strings.SplitN(key, "/", 3)
		if of := parts[0] + "/" + parts[1]; of != before {
			before, first = of, parts[2]
			return nil
		}
		found = true
		s.log.Warn("two volumes are one at their driver, so only one of them can be started: deregister the other",
			"volume", first, "other", parts[2], "driver", parts[0])
		return nil
	})
	s.duplicates.Store(found)
	return err
}
