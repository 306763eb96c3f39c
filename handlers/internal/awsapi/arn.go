package awsapi

import "github.com/aws/aws-sdk-go-v2/aws/arn"

// RegionOf returns the region in an ARN, or "" for an ARN without a region.
func RegionOf(text string) string {
	parsed, err := arn.Parse(text)
	if err != nil {
		return ""
	}
	return parsed.Region
}
