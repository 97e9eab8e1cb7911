// Shows /openapi.json in Swagger UI.

SwaggerUIBundle({ url: "/openapi.json", dom_id: "#api", deepLinking: true, docExpansion: "list", defaultModelsExpandDepth: 0 });
