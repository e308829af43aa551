package claim

import "time"

// Cluster tells one ledger from all others, for all time. Names that are given to
// what is shared by several ledgers, such as volumes of one storage system, have its
// id in them.
type Cluster struct {
	ID        string    `json:"id"`
	CreatedAt time.Time `json:"created_at"`
}

// Validate checks the id. The error is a *FieldError.
func (c *Cluster) Validate() error {
	check := checker{object: "cluster"}
	check.id("id", c.ID)
	return check.err
}
