"""A client of S3: `store.py URL make BUCKET` makes a bucket, `store.py URL get BUCKET FOLDER` copies all objects into a folder."""

import os
import sys

import boto3
from botocore.config import Config


def main(url, what, bucket, folder=None):
    client = boto3.client(
        "s3",
        endpoint_url=url,
        region_name="us-east-1",
        aws_access_key_id="key",
        aws_secret_access_key="word",
        config=Config(retries={"total_max_attempts": 10}),
    )
    if what == "make":
        client.create_bucket(Bucket=bucket)
        return
    pages = client.get_paginator("list_objects_v2").paginate(Bucket=bucket)
    for page in pages:
        for one in page.get("Contents", []):
            path = os.path.join(folder, one["Key"])
            os.makedirs(os.path.dirname(path), exist_ok=True)
            client.download_file(bucket, one["Key"], path)


if __name__ == "__main__":
    main(*sys.argv[1:])
