// Package operator answers the API's calls about the ledger as a whole: servers, snapshots, keys, garbage and changes.
package operator
